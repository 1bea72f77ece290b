"""Build a checkpoint's network from its settings: architecture, weights, surgery, blocks."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from flexround import imports
from flexround.io import artifacts
from flexround.machine.seeding import derive
from flexround.models.blocks import Block
from flexround.models.tensors import seeded, weightless
from flexround.models.weights import CPU, WHOLE, Shards, load_into
from flexround.settings.schema import Checkpoint


def architecture(checkpoint: Checkpoint, head: Mapping[str, Any]) -> nn.Module:
    """Return the network in eval mode; ``head`` has the task's arguments of the factory.

    The factory initialises the weights, identically in each process; a streamed checkpoint has none.
    """
    factory, seed = imports.load(checkpoint.model.factory), derive("weights", checkpoint.model.model_dump_json())
    with seeded(seed), weightless() if checkpoint.streamed else contextlib.nullcontext():
        return factory(**checkpoint.model.args, **head).eval()


def full_precision(
    checkpoint: Checkpoint,
    head: Mapping[str, Any],
    directory: Path,
    device: torch.device = CPU,
    kind: torch.dtype = torch.float32,
) -> nn.Module:
    """Return the network with the full-precision weights stored in ``directory``, all in memory.

    A streamed network has its parameters on ``device`` with type ``kind``; reading takes memory for one more tensor.

    Raises:
        InputError: files are damaged or belong to another network.
    """
    if checkpoint.streamed:
        shards = streamed(checkpoint, head, directory)
        shards.fill(shards.places, device, kind)
        return shards.model
    artifacts.read_manifest(directory)
    model = architecture(checkpoint, head)
    load_into(model, load_file(directory / WHOLE), str(directory / WHOLE))
    return model.eval()


def streamed(checkpoint: Checkpoint, head: Mapping[str, Any], directory: Path) -> Shards:
    """Return a network's weight files with its still empty ``model``; InputError for another network's files."""
    artifacts.read_manifest(directory)
    return Shards(directory, architecture(checkpoint, head))


def cut(checkpoint: Checkpoint, model: nn.Module) -> list[Block]:
    """Return the blocks of a network."""
    return imports.load(checkpoint.model.blocks)(model)
