"""Make the full-precision network of a task: import it, and train it if the scale says how."""

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexround import artifacts, imports, sources
from flexround.devices import lease
from flexround.errors import SettingsError
from flexround.models import build
from flexround.models.checkpoints import load_into, load_known, read_foreign
from flexround.models.shards import Shards
from flexround.settings.load import Params, load_params
from flexround.settings.schema import Checkpoint
from flexround.stages import cli
from flexround.surgery.lora import merge_checkpoint
from flexround.tasks import protocol

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    arguments.add_argument("--task", required=True, help="task of the scale, e.g. imagenet")
    arguments.add_argument("--checkpoint", required=True, help="checkpoint of the scale, e.g. resnet18-brecq")
    arguments.add_argument("--data", type=Path, help="directory of the prepared data, for what is trained here")
    arguments.add_argument("--pretrained", type=Path, help="directory of the network after pretraining, if it has one")
    arguments.add_argument("--sources", type=Path, default=Path("sources"), help="directory of the pinned sources")
    arguments.add_argument("--out", type=Path, required=True, help="directory of model.safetensors")
    arguments.add_argument("--threads", type=int, default=1, help="CPU threads")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    cli.threads(arguments.threads)
    params = load_params(arguments.scale, every_run=False)
    checkpoint, task = params.checkpoint(arguments.checkpoint), protocol.named(params.scale, arguments.task)
    model = build.architecture(checkpoint, task.head)
    facts: dict[str, Any] = {"task": arguments.task, "checkpoint": arguments.checkpoint}
    if checkpoint.source:
        facts |= import_source(params, checkpoint, model, arguments.sources, arguments.out)
    elif checkpoint.pretrain not in (None, arguments.task):
        facts |= take_over(model, arguments.pretrained, arguments.out)
    settings = params.train(arguments.task, arguments.checkpoint)
    if checkpoint.source and checkpoint.streamed:
        shards = Shards(arguments.sources / params.sources[checkpoint.source].file, model)
        if settings is None:
            link(shards, arguments.out, **facts)
            return
        shards.fill(shards.places)
        model.requires_grad_(True)
    if settings is not None:
        if arguments.data is None:
            raise SettingsError(f"{arguments.checkpoint} is trained on {arguments.task}: give --data")
        with lease() as device:
            facts["train"] = task.finetune(model.to(device), arguments.data, settings, arguments.out)
    if os.environ.get("RANK", "0") == "0":  # of several data-parallel processes one writes
        save(model, arguments.out, **facts)
        log.info("%s/%s/%s: weights in %s", params.scale.name, arguments.task, arguments.checkpoint, arguments.out)


def import_source(
    params: Params, checkpoint: Checkpoint, model: "nn.Module", directory: Path, out: Path
) -> dict[str, Any]:
    """Load a pinned source, and merge its adapter if it has one, into ``model``; return facts for the manifest."""
    path, facts = verified(params, checkpoint.source or "", directory)
    if checkpoint.loader:
        imports.load(checkpoint.loader)(model, path, out)
    else:
        state = read_foreign(path)
        load_into(model, imports.load(checkpoint.key_map)(state) if checkpoint.key_map else state, str(path))
    if checkpoint.adapter is None:
        return {"source": facts}
    path, change = verified(params, checkpoint.adapter, directory)
    merge_checkpoint(model, path)
    return {"source": facts, "adapter": change}


def verified(params: Params, name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of a pinned source, verified, and what the manifest says of it."""
    source = params.sources[name]
    path = directory / source.file
    return path, {"name": name, "revision": source.revision, "sha256": sources.verify(name, source, path)}


def take_over(model: "nn.Module", pretrained: Path | None, out: Path) -> dict[str, Any]:
    """Load a network that was pretrained here, and what lies beside it; return facts for the manifest."""
    from safetensors.torch import load_file

    if pretrained is None:
        raise SettingsError("this checkpoint is pretrained first: give --pretrained")
    manifest = artifacts.read_manifest(pretrained)
    load_known(model, load_file(pretrained / "model.safetensors"), str(pretrained / "model.safetensors"))
    artifacts.copy_existing(pretrained, out, protocol.COMPANIONS)
    return {"pretrained": manifest["files"]}


def link(shards: Shards, out: Path, **facts: Any) -> None:
    """Give the files of weights that are used as they come a second name, and write the manifest."""
    for path in shards.files:
        artifacts.link(path, out / path.name)
    companions = [name for name in protocol.COMPANIONS if (out / name).exists()]
    artifacts.write_manifest(out, [*(path.name for path in shards.files), *companions], **facts)


def save(model: "nn.Module", out: Path, **facts: Any) -> None:
    """Write the weights and the manifest, which names what else the network needs."""
    from safetensors.torch import save_file

    # Clones, because safetensors refuses tensors that share memory, such as tied embeddings.
    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    artifacts.atomic_write(out / "model.safetensors", lambda path: save_file(state, path))
    companions = [name for name in protocol.COMPANIONS if (out / name).exists()]
    artifacts.write_manifest(out, ["model.safetensors", *companions], **facts)


if __name__ == "__main__":
    cli.main(run, parser())
