"""Create a task's full-precision network: import it, and train it if the scale has train rules for it."""

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from flexround import imports
from flexround.io import artifacts, resume, sources
from flexround.jobs.runs import FinetuneJob
from flexround.machine import hardware, provenance
from flexround.machine.devices import lease, require
from flexround.models import build
from flexround.models.tensors import linears
from flexround.models.weights import Shards, load_into, load_known, merge_checkpoint, read_foreign
from flexround.models.weights import save as save_shards
from flexround.settings import layout
from flexround.tasks import protocol

log = logging.getLogger(__name__)
SMALLER = "at_once or checkpointing in the train rules (text tasks: the same result), a smaller batch there"


def finetune(arguments: argparse.Namespace) -> None:
    """Create a task's full-precision network: import it, and train it if the scale has train rules for it."""
    job = FinetuneJob.read(arguments.job)
    if job.train is not None:
        require(arguments.gpus)  # before weights are read
    checkpoint, task = job.checkpoint, protocol.build(job.task)
    model = build.architecture(checkpoint, task.head)
    _, name, network = job.names
    facts: dict[str, Any] = {"place": str(job.out), "task": name, "checkpoint": network, "inputs": {}}
    if checkpoint.source:
        facts |= (imported := import_source(job, model))
        facts["inputs"] |= {layout.source_file(of["name"]): of["sha256"] for of in imported.values()}
    elif job.pretrained:
        facts["inputs"] |= take_over(model, job.pretrained, job.out)
    if checkpoint.source and checkpoint.streamed:
        shards = Shards(place(job, checkpoint.source), model)
        if job.train is None:
            for path in shards.files:
                artifacts.link(path, job.out / path.name)
            publish(job, [path.name for path in shards.files], facts)
            return
    if job.train is None or job.data is None:
        finish(job, model, facts)
        return
    with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
        if checkpoint.streamed:
            read(shards, device, getattr(torch, job.train.get("frozen", "float32")))
        facts["inputs"] |= provenance.inputs(job.data)
        state = arguments.state / "finetune" / resume.fingerprint(device, job.identity, facts)
        with resume.kept(state):  # until the result is written
            with hardware.enough("/".join(job.names), SMALLER):
                facts["train"] = task.finetune(model.to(device), job.data, job.train, job.out)
            arguments.confirm()
            finish(job, model, facts)


def import_source(job: FinetuneJob, model: nn.Module) -> dict[str, Any]:
    """Load a pinned source into ``model``, and merge its adapter if any; return facts for the manifest."""
    checkpoint, name = job.checkpoint, job.checkpoint.source or ""
    found, path = {"source": verified(job, name)}, place(job, name)
    if checkpoint.loader:
        imports.load(checkpoint.loader)(model, path, job.out)
    else:
        state = read_foreign(path)
        load_into(model, imports.load(checkpoint.key_map)(state) if checkpoint.key_map else state, str(path))
    found |= {part: verified(job, part) for part in checkpoint.parts}
    if checkpoint.adapter:
        found["adapter"] = verified(job, checkpoint.adapter)
        merge_checkpoint(model, place(job, checkpoint.adapter))
    return found


def take_over(model: nn.Module, pretrained: Path, out: Path) -> dict[str, Any]:
    """Load a network that was pretrained here, copy its companion files, and return its hashes for the manifest."""
    load_known(model, load_file(pretrained / "model.safetensors"), str(pretrained / "model.safetensors"))
    artifacts.copy_existing(pretrained, out, protocol.COMPANIONS)
    return provenance.inputs(pretrained)


def place(job: FinetuneJob, name: str) -> Path:
    """Return the file or directory of a pinned source."""
    return Path(layout.SOURCES, job.origins[name].file)


def verified(job: FinetuneJob, name: str) -> dict[str, Any]:
    """Verify a pinned source; return its facts for the manifest."""
    source = job.origins[name]
    return {"name": name, "revision": source.revision, "sha256": sources.verify(name, source, place(job, name))}


def read(shards: Shards, device: torch.device, frozen: torch.dtype) -> None:
    """Read weights for training, with linears as ``frozen`` from the start: float32 weights may not fit in memory."""
    held = linears(shards.model)
    shards.fill(held, device, frozen)
    shards.fill([name for name in shards.places if name not in held], device)
    shards.model.requires_grad_(True)


def finish(job: FinetuneJob, model: nn.Module, facts: dict[str, Any]) -> None:
    """Apply the checkpoint's ``finish`` function, if any, and write the network, in shards if it is streamed."""
    if (last := job.checkpoint.finish) is not None:
        imports.load(last.function)(model, **last.args)
        facts |= {"finish": last.model_dump(mode="json")}
    if job.checkpoint.streamed:
        publish(job, save_shards(model, job.out), facts)
        return
    # safetensors refuses tensors that share memory, such as tied embeddings, so they are cloned.
    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    artifacts.atomic_write(job.out / "model.safetensors", lambda path: save_file(state, path))
    publish(job, ["model.safetensors"], facts)


def publish(job: FinetuneJob, files: list[str], facts: dict[str, Any]) -> None:
    """Write the manifest of ``files`` and of the companion files that are there."""
    companions = [name for name in protocol.COMPANIONS if (job.out / name).exists()]
    artifacts.write_manifest(job.out, [*files, *companions], **facts)
    log.info("%s: weights in %s", "/".join(job.names), job.out)
