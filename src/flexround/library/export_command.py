"""Write what ``flexround quantize`` made in a format that others load, block by block where the format allows."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from flexround.errors import look_up
from flexround.io import artifacts
from flexround.library.command import COMPANIONS, causal_model, configuration
from flexround.library.quantized import EXPORTS, Quantized, load, read_saved, write_export
from flexround.models.tensors import weightless
from flexround.reconstruct import codes

TRACED = {"input_ids": torch.ones(2, 8, dtype=torch.long)}  # any token ids: a graph depends on their shape alone


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    arguments = argparse.ArgumentParser(prog="python -m flexround export", description=__doc__)
    arguments.add_argument("model", type=Path, help="directory that flexround quantize wrote")
    arguments.add_argument("--format", required=True, help=", ".join(EXPORTS))
    arguments.add_argument("--out", type=Path, required=True, help="new directory")
    return arguments


class _Parts(Mapping[str, codes.Part]):
    """The parts of a stored network, each read when it is asked for."""

    def __init__(self, directory: Path) -> None:
        self.files = {path.name: path for path in codes.files(directory)}

    def __getitem__(self, name: str) -> codes.Part:
        return codes.read(self.files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def run(arguments: argparse.Namespace) -> None:
    """Write the network.

    Raises:
        SettingsError: an unknown format.
        InputError: a directory without a network, or what the format can't hold.
    """
    directory, kind = arguments.model, arguments.format
    look_up("export", EXPORTS, kind)
    saved = read_saved(directory)
    stored_type = configuration(directory).dtype or torch.float32  # of the network that was quantized
    with artifacts.new_directory(arguments.out) as new:
        artifacts.copy_existing(directory, new, COMPANIONS)
        if kind == "onnx":  # traced, with all weights in memory
            write_export(load(directory, causal_model(directory)), kind, new, TRACED)
        else:
            with weightless():
                model = causal_model(directory, stored_type)
            facts = (saved.recipe, saved.hyper, saved.hyper_sources, saved.report)
            origin = saved.origin.model_dump()
            network = Quantized(model, *facts, _Parts(directory), saved.architecture, origin)
            write_export(network, kind, new)
