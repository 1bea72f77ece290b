"""Layers of the current block with their roundings: create them, show them inputs, replace them by codes."""

import dataclasses
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import SettingsError
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.quant.grid import Grid, Scheme, in_groups, nearest_codes
from flexround.quant.rounding import Rounding
from flexround.reconstruct.codes import WEIGHT, Result, Stored, store_codes
from flexround.reconstruct.inputs import LayerInputs
from flexround.reconstruct.optimise import ParameterGroup
from flexround.reconstruct.reconstruction import End, Reconstruction

SAME = 1e-5  # relative change of a step that counts as unchanged


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of the current block, with its weight's rounding and the initial grid."""

    name: str
    module: nn.Module
    rounding: Rounding
    given: Grid  # initial grid, which the rounding may replace

    def weight(self) -> Tensor:
        """Return the full-precision weight in the rounding's shape: in groups if groups have steps."""
        return in_groups(attach.original_weight(self.module), self.rounding.grid.step)

    def nearest(self) -> bool:
        """Return whether step and codes equal round-to-nearest's, except for last bits of the step."""
        step, weight = self.rounding.final_grid().step, self.weight()
        close = torch.allclose(step, self.given.step, rtol=SAME, atol=0)
        return close and torch.equal(self.rounding.codes(weight), nearest_codes(weight, self.given))

    @torch.no_grad()
    def on_grid(self) -> bool:
        """Return whether the learned weight equals codes times step, so that storing it loses nothing."""
        rounding, weight = self.rounding, self.weight()
        return torch.equal(rounding(weight), rounding.codes(weight) * rounding.final_grid().step)


@torch.no_grad()
def check(layers: Sequence[Layer]) -> None:
    """Call each rounding once before it is attached.

    Raises:
        SettingsError: its result has another shape or type than the weight, or it wrote on the weight.
    """
    for layer in layers:
        weight = in_groups(layer.module.weight.detach(), layer.given.step)  # type: ignore[operator]
        given = weight.clone()
        found = layer.rounding(given)
        if (found.shape, found.dtype) != (weight.shape, weight.dtype) or not torch.equal(given, weight):
            raise SettingsError(
                f"layer {layer.name}: {type(layer.rounding).__name__}.forward must return a new tensor like its "
                f"weight, {weight.dtype} {tuple(weight.shape)}, and leave the weight unchanged"
            )


def made(job: Reconstruction, name: str, module: nn.Module, end: End | None) -> Layer:
    """Return a layer with its unattached rounding on the initial grid."""
    hyper, axes = job.hyper, attach.weight_axes(module)
    assert axes is not None
    axis = None if hyper.w_granularity == "tensor" else axes.output
    scheme = Scheme(job.weight_bits(end), hyper.w_scheme == "symmetric", axis)
    weight = module.weight.detach()  # type: ignore[operator]
    grid = attach.weight_grid(weight, scheme, hyper.w_init, hyper.w_init_p, job.group_size(module))
    own = dataclasses.replace(grid, step=grid.step.clone(), zero_point=grid.zero_point.clone())
    rounding = job.rounding(in_groups(weight.clone(), grid.step), own, axes, **job.recipe.options)
    return Layer(name, module, rounding, grid)


def fit(job: Reconstruction, block: Block, layers: Sequence[Layer], x: Tensor) -> set[str]:
    """Show roundings that need inputs the inputs of their layers for ``x`` (N, ...), layer by layer.

    Return the names of layers that the block calls with no input.
    """
    inputs, unseen = None, set[str]()
    for layer in (layer for layer in layers if layer.rounding.needs_inputs):
        if inputs is None or not inputs.serve(layer.module):
            inputs = LayerInputs(job, block, layer.module, x, inputs)
        layer.rounding.fit(layer.weight().clone(), inputs)
        if next(iter(inputs), None) is None:
            unseen.add(layer.name)
    return unseen


def learned(layers: Sequence[Layer], unseen: Set[str]) -> dict[str, Any]:
    """Return, for the record, whether any layer left round-to-nearest, and the layers that should have but did not.

    Next to layers that learned, a layer counts only if nothing reached it: no input, no gradient of the last iteration.
    """
    nearest = [layer for layer in layers if layer.nearest()]
    moved, stuck = len(nearest) < len(layers), []
    for layer in nearest:
        parameters = [parameter for group in layer.rounding.groups().values() for parameter in group]
        reached = any(parameter.grad is not None for parameter in parameters)
        looked = layer.rounding.needs_inputs and (not moved or layer.name in unseen)
        if looked or (parameters and not (moved and reached)):
            stuck.append(layer.name)
    return {"learned": moved, "nearest": stuck}


def harden(layers: Sequence[Layer]) -> Result:
    """Replace each rounding by its codes times its step, in float32; return the stored codes.

    Raises:
        SettingsError: a rounding's final grid has other bits or another granularity than the recipe's.
    """
    found: Result = {}
    for layer in layers:
        grid, codes = layer.rounding.final_grid(), layer.rounding.codes(layer.weight())
        kinds = [(of.qmin, of.qmax, of.step.shape, of.zero_point.shape) for of in (grid, layer.given)]
        if kinds[0] != kinds[1]:
            raise SettingsError(
                f"layer {layer.name}: {type(layer.rounding).__name__}.final_grid may change values of step and zero "
                f"point alone, not bits and shapes: {kinds[0]}, the recipe's are {kinds[1]}"
            )
        attach.bake(layer.module, codes * grid.step)
        stored = store_codes(layer.name, codes, grid)
        stored = stored.reshape(layer.module.weight.shape)  # type: ignore[arg-type]
        start = layer.given.zero_point
        moved = None if torch.equal(start, grid.zero_point) else start
        found[f"{WEIGHT}{layer.name}"] = Stored(grid, stored, layer.given.step, moved)
    return found


def parameter_groups(roundings: Sequence[Rounding], job: Reconstruction) -> list[ParameterGroup]:
    """Return the roundings' parameters by rate and schedule, for one fused optimiser call instead of one per layer.

    Raises:
        SettingsError: a rounding's parameter is in none of its groups, so nothing would learn it.
    """
    merged: dict[tuple[float, str], list[nn.Parameter]] = {}
    for rounding in roundings:
        left = {parameter: name for name, parameter in rounding.named_parameters() if parameter.requires_grad}
        for name, parameters in rounding.groups().items():
            lr, schedule = (_of_group(key, name, rounding, job) for key in ("lr", "schedule"))
            merged.setdefault((lr, schedule), []).extend(parameters)
            for parameter in parameters:
                left.pop(parameter, None)
        if left:
            raise SettingsError(f"{type(rounding).__name__}: groups leave out {', '.join(left.values())}; add them")
    return [ParameterGroup(parameters, lr, schedule) for (lr, schedule), parameters in merged.items() if parameters]


def _of_group(key: str, name: str, rounding: Rounding, job: Reconstruction) -> Any:
    """Return a group's value of a setting, which is common to a rounding's groups or given per group.

    Raises:
        SettingsError: the setting has no value for this group.
    """
    values = getattr(job.hyper, key)
    if not isinstance(values, dict):
        return values
    if name not in values:
        raise SettingsError(
            f"hyper-parameters of {'/'.join(map(str, job.seed_parts))}: {key} has no value for the group {name!r} of "
            f"{type(rounding).__name__}, only for {', '.join(map(repr, values))}; add it, or give one value for all"
        )
    return values[name]
