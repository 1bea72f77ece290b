"""Write the networks that `make pretrain` made where the scale that reads them expects them, and pin their sha256."""

import argparse
import json
import logging
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flexround.errors import NumericalError, SettingsError
from flexround.io import artifacts, sources
from flexround.models import build
from flexround.models.weights import WHOLE
from flexround.settings import layout
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.schema import Checkpoint
from flexround.settings.sources import Source
from flexround.tasks import protocol
from flexround.tools import cli

log = logging.getLogger(__name__)
SOURCES = Path("params/sources.yaml")


def parser() -> argparse.ArgumentParser:
    """Return the command line of this tool."""
    arguments = cli.parser(__doc__)
    arguments.set_defaults(scale="worlds/pretraining.yaml")
    arguments.add_argument("--checkpoints", help="some of them, joined by commas")
    arguments.add_argument("--reader", default="mini", help="the scale that reads the files")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Write the files of the checkpoints with `pretrain`, and their rows of ``params/sources.yaml``.

    Raises:
        InputError: a network that is not there yet, or is damaged.
        SettingsError: the scale that reads them has no such file as its source.
        NumericalError: weights that float16 can't hold.
    """
    params, reader = load_params(arguments.scale), load_params(arguments.reader)
    for name, task in Plan(params, {"checkpoints": arguments.checkpoints}).pretrained().items():
        row = reader.checkpoint(name).source or ""
        if row not in reader.sources or not reader.sources[row].inside:
            raise SettingsError(f"scale {arguments.reader}: {name}: its source {row!r} is no file of this project")
        trained = Path(layout.checkpoint_dir(params.scale.name, task, name))
        head = protocol.build(params.scale.tasks[task]).head
        path = write(trained, params.checkpoint(name), head, reader.sources[row])
        pin(row, sources.digest(path), sources.size(path))
        log.info("%s: %d bytes in %s", name, sources.size(path), path)


def write(trained: Path, checkpoint: Checkpoint, head: dict[str, Any], source: Source) -> Path:
    """Write a trained network, as one file or in the layout of a Hugging Face directory; return where it is.

    A language network leaves out what is stored twice, a tied head, and the head of BERT's pretraining.
    """
    artifacts.read_manifest(trained)
    path = Path(source.inside)
    state = {name: narrowed(name, value) for name, value in load_file(trained / WHOLE).items()}
    state = {name: value for name, value in state.items() if value.is_floating_point()}
    if source.files:
        model: Any = build.architecture(checkpoint, head)
        config = model.config.to_diff_dict()
        config.pop("transformers_version", None)
        artifacts.write_json(path / "config.json", config)
        tokenizer = json.loads((trained / "tokenizer.json").read_text())
        artifacts.write_text(path / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")))
        spare = ("cls.", "lm_head.") if config.get("tie_word_embeddings", True) else ("cls.",)
        state = {name: value for name, value in state.items() if not name.startswith(spare)}
    artifacts.atomic_write(path / WHOLE if source.files else path, lambda temporary: save_file(state, temporary))
    return path


def narrowed(name: str, value: Tensor) -> Tensor:
    """Return a weight of two or more axes as float16, anything else as it is: vectors cost little."""
    if value.ndim < 2:
        return value
    half = value.to(torch.float16)
    if not torch.isfinite(half).all():
        raise NumericalError(f"{name}: values up to {value.abs().max():.3g} don't fit in float16; scale them down")
    return half


def pin(row: str, digest: str, count: int) -> None:
    """Put sha256 and size into a row of ``params/sources.yaml``, which stays as it is otherwise."""
    text, values = SOURCES.read_text(), {"sha256": f'"{digest}"', "bytes": str(count)}
    for key, value in values.items():
        text, found = re.subn(rf"(^{re.escape(row)}:\n(?:  .*\n)*?  {key}: ).*", rf"\g<1>{value}", text, flags=re.M)
        if not found:
            raise SettingsError(f"{SOURCES}: {row} has no {key}; add one, of any value, to be replaced")
    artifacts.write_text(SOURCES, text)


if __name__ == "__main__":
    cli.main(run, parser())
