"""Build a checkpoint's network from its settings: architecture, weights, surgery, blocks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from flexround import artifacts, imports
from flexround.models.blocks import Block
from flexround.models.checkpoints import load_into
from flexround.settings.schema import Checkpoint


def architecture(checkpoint: Checkpoint, head: Mapping[str, Any]) -> nn.Module:
    """Return the network in eval mode, weights as the factory leaves them; ``head`` is what the task asks for."""
    return imports.load(checkpoint.model.factory)(**checkpoint.model.args, **head).eval()


def full_precision(checkpoint: Checkpoint, head: Mapping[str, Any], directory: Path) -> nn.Module:
    """Return the network with the full-precision weights stored in ``directory``.

    Raises:
        InputError: damaged files or weights of another network.
    """
    from safetensors.torch import load_file

    artifacts.read_manifest(directory)
    model = architecture(checkpoint, head)
    load_into(model, load_file(directory / "model.safetensors"), str(directory / "model.safetensors"))
    return model.eval()


def cut(checkpoint: Checkpoint, model: nn.Module) -> list[Block]:
    """Return the blocks of a network."""
    return imports.load(checkpoint.model.blocks)(model)
