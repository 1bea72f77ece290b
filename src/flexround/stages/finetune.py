"""Make a full-precision checkpoint: train it here, or import it from a pinned source."""

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexround import artifacts, imports, sources, tasks
from flexround.devices import lease
from flexround.errors import SettingsError
from flexround.models import build
from flexround.models.checkpoints import load_into, read_foreign
from flexround.settings.load import Params, load_params
from flexround.settings.schema import Checkpoint
from flexround.stages import cli

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    arguments.add_argument("--checkpoint", required=True, help="checkpoint of the scale, e.g. resnet18-brecq")
    arguments.add_argument("--data", type=Path, help="directory of the prepared data, for checkpoints trained here")
    arguments.add_argument("--sources", type=Path, default=Path("sources"), help="directory of the pinned sources")
    arguments.add_argument("--out", type=Path, required=True, help="directory of model.safetensors")
    arguments.add_argument("--threads", type=int, default=1, help="CPU threads")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    cli.threads(arguments.threads)
    params = load_params(arguments.scale)
    checkpoint = params.checkpoint(arguments.checkpoint)
    model = build.architecture(checkpoint)
    if checkpoint.train is None:
        facts = import_source(params, checkpoint, model, arguments.sources)
    else:
        facts = train(params, checkpoint, model, arguments.data)
    save(model, arguments.out, checkpoint=arguments.checkpoint, **facts)
    log.info("%s/%s: weights in %s", params.scale.name, arguments.checkpoint, arguments.out)


def train(params: Params, checkpoint: Checkpoint, model: "nn.Module", data: Path | None) -> dict[str, Any]:
    """Train ``model`` in place as ``checkpoint.train`` says; return facts for the manifest."""
    if data is None:
        raise SettingsError("a checkpoint that is trained needs --data")
    task = tasks.named(params.scale, checkpoint.task)
    with lease() as device:
        return {"train": task.finetune(model.to(device), data, checkpoint.train or {})}


def import_source(params: Params, checkpoint: Checkpoint, model: "nn.Module", directory: Path) -> dict[str, Any]:
    """Load a pinned source, verified, into ``model``; return facts for the manifest."""
    name = checkpoint.source or ""
    source = params.sources[name]
    path = directory / source.file
    found = sources.verify(name, source, path)
    state = read_foreign(path)
    if checkpoint.key_map:
        state = imports.load(checkpoint.key_map)(state)
    load_into(model, state, str(path))
    return {"source": {"name": name, "revision": source.revision, "sha256": found}}


def save(model: "nn.Module", out: Path, **facts: Any) -> None:
    """Write the weights and their manifest."""
    from safetensors.torch import save_file

    # Clones, because safetensors refuses tensors that share memory, such as tied embeddings.
    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    artifacts.atomic_write(out / "model.safetensors", lambda path: save_file(state, path))
    artifacts.write_manifest(out, ["model.safetensors"], **facts)


if __name__ == "__main__":
    cli.main(run, parser())
