"""Batch-norm folding: merge each batch norm into the convolution before it (Jacob et al. 2018, section 3.2)."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.models.tensors import outputs_apart, unchanged
from flexround.models.trace import ModuleCall, Trace, traced, with_first

CLOSE = 1e-3  # largest error of a folded batch norm's output, relative to the largest output


@dataclasses.dataclass(frozen=True)
class FoldedStatistics:
    """Distribution of a folded convolution's output: channel i has mean ``beta[i]`` and deviation ``|gamma[i]|``.

    Both are (C_out,), bias and weight of the folded batch norm.
    """

    gamma: Tensor
    beta: Tensor


@torch.no_grad()
def fold_batch_norm(model: nn.Module) -> dict[str, FoldedStatistics]:
    """Fold every batch norm of ``model`` into its convolution, in place, and replace it by ``nn.Identity``.

    A convolution and its batch norm are neighbours in registration order. Both may have several names, as in networks
    that list their layers twice. The model must be in evaluation mode.

    Returns:
        The folded gamma and beta by the convolution's first name; empty for a model without batch norms.

    Raises:
        InputError: a batch norm has no convolution before it; the model is then unchanged.
    """
    statistics, folded = {}, {}
    for (conv, norm), (conv_name, norm_name) in _pairs(model).items():
        statistics[conv_name] = _fold(conv, norm)
        folded[norm_name] = conv_name
    restructure(model, folded)
    return statistics


@torch.no_grad()
def fold_as_traced(model: nn.Module, x: Tensor) -> tuple[dict[str, str], dict[str, FoldedStatistics]]:
    """Fold, in place, each batch norm into its convolution if it alone reads the convolution's output in a pass.

    A subclass of ``nn.BatchNorm2d`` with its own ``forward``, such as a batch norm with activation, stays but no longer
    normalises. Batch norms after other modules don't change. Nor do batch norms whose output would change, because
    their convolution computes with something else than its weight.

    Args:
        model: in evaluation mode.
        x: an input, (N, ...).

    Returns:
        The convolution of each folded batch norm, both by first names; gamma and beta by the convolution's name.
    """
    layers = {module for module in model.modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)}
    if not any(isinstance(module, nn.BatchNorm2d) for module in layers):
        return {}, {}
    with unchanged(model):
        trace = traced(model, x, layers)
    names = {module: name for name, module in model.named_modules()}
    folded, statistics = {}, {}
    for conv, norm in _pairs_in(trace):
        if found := _tried(conv, norm):
            statistics[names[conv.module]] = found
            folded[names[norm.module]] = names[conv.module]
    restructure(model, folded)
    return folded, statistics


def restructure(model: nn.Module, folded: Mapping[str, str]) -> None:
    """Change a model, with or without values, to the modules that it has after folding.

    Convolutions get a bias. ``nn.Identity`` replaces batch norms, unless they define their own ``forward``.

    Args:
        model: changed in place.
        folded: the convolution's name by the batch norm's name.
    """
    replaced: dict[nn.Module, nn.Module] = {}
    for norm_name, conv_name in folded.items():
        norm, conv = model.get_submodule(norm_name), model.get_submodule(conv_name)
        if conv.bias is None:
            conv.bias = nn.Parameter(torch.zeros_like(conv.weight[:, 0, 0, 0]), requires_grad=False)
        norm.eps = 0.0  # type: ignore[assignment] # a neutral batch norm's other values come with the weights
        if type(norm).forward is nn.BatchNorm2d.forward:
            replaced[norm] = nn.Identity()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in replaced:
            model.set_submodule(name, replaced[module])


def _pairs_in(trace: Trace) -> list[tuple[ModuleCall, ModuleCall]]:
    """Return a call of each convolution and of the batch norm that alone reads all of its outputs."""
    readers: dict[int, set[nn.Module | None]] = {value: {None} for value in trace.returned}
    for operation in trace.operations:
        for value in operation.reads:
            readers.setdefault(value, set()).add(operation.inside)
    calls: dict[nn.Module, list[ModuleCall]] = {}
    for call in trace.calls:
        calls.setdefault(call.module, []).append(call)
    pairs = []
    for norm, reading in calls.items():
        read = {call.reads for call in reading}
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and None not in read:
            writing = [call for call in trace.calls if call.writes in read and isinstance(call.module, nn.Conv2d)]
            written = {call.writes for call in calls[writing[0].module]} if writing else set()
            if written == read and all(readers[value] == {norm} for value in read if value is not None):
                pairs.append((writing[0], reading[0]))
    return pairs


def _tried(conv: ModuleCall, norm: ModuleCall) -> FoldedStatistics | None:
    """Fold a batch norm if its output in the traced call stays the same; else change nothing and return None."""

    def output() -> Any:
        x = conv.module(*conv.arguments, **conv.keywords)
        arguments, keywords = with_first(norm.arguments, norm.keywords, x)
        return norm.module(*arguments, **keywords)

    wanted, layer, after = output(), conv.module, norm.module
    assert isinstance(layer, nn.Conv2d)  # both asserts are for type checkers
    assert isinstance(after, nn.BatchNorm2d)
    weight, bias, eps = layer.weight.detach().clone(), layer.bias, after.eps
    values = {name: value.detach().clone() for name, value in after.state_dict().items()}
    statistics = _fold(layer, after)
    _neutralise(after)
    if outputs_apart(output(), wanted) < CLOSE:
        return statistics
    layer.weight.copy_(weight)
    layer.bias, after.eps = bias, eps
    after.load_state_dict(values)
    return None


def _pairs(model: nn.Module) -> dict[tuple[nn.Conv2d, nn.BatchNorm2d], tuple[str, str]]:
    """Return each pair of convolution and batch norm, with names; refuse a batch norm that can't be folded."""
    pairs: dict[tuple[nn.Conv2d, nn.BatchNorm2d], tuple[str, str]] = {}
    for parent_name, parent in model.named_modules():
        prefix = f"{parent_name}." if parent_name else ""
        for (conv_name, conv), (name, norm) in itertools.pairwise([("", parent), *parent.named_children()]):
            if not isinstance(norm, nn.BatchNorm2d):
                continue
            if not isinstance(conv, nn.Conv2d) or conv.out_channels != norm.num_features:
                raise InputError(
                    f"{prefix}{name}: no convolution with {norm.num_features} output channels comes right before this "
                    "batch norm; register each batch norm directly after its convolution"
                )
            pairs.setdefault((conv, norm), (prefix + conv_name, prefix + name))
    return pairs


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> FoldedStatistics:
    """Make ``conv`` compute ``norm(conv(x))``; work in float64 so that values are rounded once, at the end."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None  # both asserts are for type checkers: no pair has None
    assert variance is not None
    gamma = torch.ones_like(mean) if norm.weight is None else norm.weight.detach().clone()
    beta = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().clone()
    scale = gamma.double() / (variance.double() + norm.eps).sqrt()
    bias = 0.0 if conv.bias is None else conv.bias.double()
    folded = beta.double() + (bias - mean.double()) * scale
    conv.weight.copy_(conv.weight.double() * scale.view(-1, 1, 1, 1))
    conv.bias = nn.Parameter(folded.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)
    return FoldedStatistics(gamma, beta)


def _neutralise(norm: nn.BatchNorm2d) -> None:
    """Make a batch norm return its input, bit for bit."""
    norm.eps = 0.0
    for values, neutral in ((norm.running_mean, 0), (norm.bias, 0), (norm.running_var, 1), (norm.weight, 1)):
        if values is not None:
            values.fill_(neutral)
