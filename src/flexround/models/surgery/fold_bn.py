"""Batch-norm folding: each batch norm becomes part of the convolution before it."""

import dataclasses
import itertools

import torch
from torch import Tensor, nn

from flexround.errors import InputError


@dataclasses.dataclass(frozen=True)
class FoldedStatistics:
    """How a folded convolution's output is distributed: channel i has mean ``beta[i]`` and deviation ``|gamma[i]|``.

    Both are (C_out,), bias and weight of the folded batch norm.
    """

    gamma: Tensor
    beta: Tensor


@torch.no_grad()
def fold_batch_norm(model: nn.Module) -> dict[str, FoldedStatistics]:
    """Fold every batch norm of ``model`` into its convolution, in place, and leave ``nn.Identity`` where it was.

    Jacob et al. 2018, section 3.2. A convolution and its batch norm are neighbours in registration order. Both may have
    several names, as in networks that list their layers again. The model must be in evaluation mode.

    Returns:
        The folded gamma and beta by the convolution's first name; empty if there is no batch norm.

    Raises:
        InputError: a batch norm has no convolution before it; nothing is changed then.
    """
    statistics = {}
    replaced: dict[nn.Module, nn.Module] = {}
    for (conv, norm), conv_name in _pairs(model).items():
        _fold(conv, norm)
        statistics[conv_name] = FoldedStatistics(norm.weight.detach().clone(), norm.bias.detach().clone())
        replaced[norm] = nn.Identity()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in replaced:
            model.set_submodule(name, replaced[module])
    return statistics


def _pairs(model: nn.Module) -> dict[tuple[nn.Conv2d, nn.BatchNorm2d], str]:
    """Return each convolution with its batch norm, and its name; refuse a batch norm that can't be folded."""
    pairs: dict[tuple[nn.Conv2d, nn.BatchNorm2d], str] = {}
    for parent_name, parent in model.named_modules():
        prefix = f"{parent_name}." if parent_name else ""
        for (conv_name, conv), (name, norm) in itertools.pairwise([("", parent), *parent.named_children()]):
            if not isinstance(norm, nn.BatchNorm2d):
                continue
            if not (norm.affine and norm.track_running_stats):
                raise InputError(f"{prefix}{name}: has no weights or no running statistics to fold; use affine=True")
            if not isinstance(conv, nn.Conv2d) or conv.out_channels != norm.num_features:
                raise InputError(
                    f"{prefix}{name}: no convolution with {norm.num_features} output channels comes right before this "
                    "batch norm; register each batch norm directly after its convolution"
                )
            pairs.setdefault((conv, norm), prefix + conv_name)
    return pairs


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """Make ``conv`` compute ``norm(conv(x))``; in float64, so that the only rounding is the final one."""
    assert norm.running_mean is not None  # both for type checkers: `_pairs` refuses None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    bias = 0.0 if conv.bias is None else conv.bias.double()
    folded = norm.bias.double() + (bias - norm.running_mean.double()) * scale
    conv.weight.copy_(conv.weight.double() * scale.view(-1, 1, 1, 1))
    conv.bias = nn.Parameter(folded.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)
