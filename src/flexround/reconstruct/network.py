"""The network that is quantized: full-precision weights, batch norms folded, surgery of the recipe done."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from flexround import imports
from flexround.models import build
from flexround.reconstruct import result
from flexround.settings.schema import Checkpoint
from flexround.surgery.preprocess import prepare

STRUCTURAL = ("replace_relu6", "restore_relu6")  # surgery that changes modules, not only values


def prepared(checkpoint: Checkpoint, head: Mapping[str, Any], directory: Path, steps: Sequence[str]) -> nn.Module:
    """Return the folded and preprocessed full-precision network.

    Raises:
        InputError: damaged or foreign weights.
        SettingsError: surgery that this architecture does not offer.
    """
    model = build.full_precision(checkpoint, head, directory)
    groups = checkpoint.model.equalization
    prepare(model, steps, imports.load(groups)(model) if groups else None)
    return model.eval()


def quantized(checkpoint: Checkpoint, head: Mapping[str, Any], directory: Path, steps: Sequence[str]) -> nn.Module:
    """Return the quantized network stored in ``directory``; the full-precision weights are not needed.

    Raises:
        InputError: damaged files, or a result of another network.
    """
    model = build.architecture(checkpoint, head)
    prepare(model, [step for step in steps if step in STRUCTURAL])
    result.load(directory, model, build.cut(checkpoint, model))
    return model.eval()
