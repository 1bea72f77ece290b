"""The network to quantize: full-precision weights, after batch-norm folding and the recipe's surgery."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flexround import imports
from flexround.errors import SettingsError
from flexround.models import build
from flexround.models.blocks import Block
from flexround.models.surgery.preprocess import prepare
from flexround.models.weights import CPU
from flexround.reconstruct import codes
from flexround.reconstruct.reconstruction import Resident, Streamed, Weights
from flexround.settings.schema import Checkpoint

STRUCTURAL = ("replace_relu6", "restore_relu6")  # surgery that changes modules, not just values


def prepared(
    checkpoint: Checkpoint,
    head: Mapping[str, Any],
    directory: Path,
    steps: Sequence[str],
    device: torch.device = CPU,
    kind: torch.dtype = torch.float32,
) -> nn.Module:
    """Return the folded and preprocessed full-precision network, whose parameters have type ``kind``.

    A streamed network has its parameters on ``device``; for this and errors see ``build.full_precision``.
    """
    model = build.full_precision(checkpoint, head, directory, device, kind)
    groups = checkpoint.model.equalization
    prepare(model, steps, imports.load(groups)(model) if groups else None)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(kind)
    return model.eval()


def to_quantize(
    checkpoint: Checkpoint, head: Mapping[str, Any], directory: Path, steps: Sequence[str], device: torch.device
) -> tuple[nn.Module, list[Block], Weights]:
    """Return a prepared network, its blocks, and the source of their weights: memory, or files if it is streamed.

    SettingsError: surgery on a streamed network. Further errors are those of ``prepared``.
    """
    if not checkpoint.streamed:
        model = prepared(checkpoint, head, directory, steps).to(device)
        blocks = build.cut(checkpoint, model)
        return model, blocks, Resident(blocks)
    if steps:
        raise SettingsError(f"preprocess: {', '.join(steps)} needs the whole network, and this checkpoint is streamed")
    shards = build.streamed(checkpoint, head, directory)
    blocks = build.cut(checkpoint, shards.model)
    return shards.model, blocks, Streamed(shards, blocks, device)


def quantized(
    checkpoint: Checkpoint,
    head: Mapping[str, Any],
    directory: Path,
    steps: Sequence[str],
    device: torch.device = CPU,
    kind: torch.dtype = torch.float32,
) -> nn.Module:
    """Return the quantized network stored in ``directory``, without reading full-precision weights.

    Its parameters are read onto ``device`` with type ``kind``; activation steps are float32. InputError: files are
    damaged or belong to another network.
    """
    model = build.architecture(checkpoint, head)
    prepare(model, [step for step in steps if step in STRUCTURAL])
    codes.load(directory, model, build.cut(checkpoint, model), device, kind)
    return model.eval()
