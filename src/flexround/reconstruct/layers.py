"""Layers of the current block with their roundings: create them, show them inputs, replace them by codes."""

import dataclasses
import itertools
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import NumericalError, SettingsError
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
        step, given = self.rounding.final_grid().step, self.given.step
        same = step.shape == given.shape and torch.allclose(step, given, rtol=SAME, atol=0)
        return same and torch.equal(self.returned("codes"), nearest_codes(self.weight(), self.given))

    def on_grid(self) -> bool:
        """Return whether the learned weight equals codes times step, so that storing it loses nothing."""
        return torch.equal(self.returned("forward"), self.returned("codes") * self.rounding.final_grid().step)

    def returned(self, call: str) -> Tensor:
        """Return the result of the rounding's ``forward`` or ``codes`` for the weight, shape of the weight.

        Raises:
            SettingsError: the result has a wrong shape or type, or the weight was changed; with class and layer.
        """
        weight = self.weight()
        before, where = weight.clone(), f"layer {self.name}: {type(self.rounding).__name__}.{call}"
        found = getattr(self.rounding, call)(weight)
        if not torch.equal(weight, before):
            raise SettingsError(f"{where} changes the weight that it is given; change a clone of it")
        if (shape := getattr(found, "shape", None)) != weight.shape:
            got = type(found).__name__ if shape is None else tuple(shape)
            raise SettingsError(f"{where} returns {got}, its weight has shape {tuple(weight.shape)}; return this shape")
        if call == "forward" and found.dtype != weight.dtype:
            raise SettingsError(f"{where} returns {found.dtype}, its weight is {weight.dtype}; return this type")
        return found.to(weight.dtype)

    def parameters(self) -> set[nn.Parameter]:
        """Return the parameters that the rounding learns.

        Raises:
            SettingsError: ``groups`` are no lists of parameters by name, or lack a parameter.
        """
        groups, where = self.rounding.groups(), f"layer {self.name}: {type(self.rounding).__name__}.groups"
        lists = list(groups.values()) if isinstance(groups, dict) else [None]
        if not all(isinstance(each, list | tuple) and all(isinstance(p, nn.Parameter) for p in each) for each in lists):
            raise SettingsError(f"{where} returns no lists of nn.Parameter by name, such as {{'all': [self.v]}}")
        found = set(itertools.chain(*lists))
        for name, parameter in self.rounding.named_parameters():
            if parameter.requires_grad and parameter not in found:
                raise SettingsError(f"{where} leaves out {name}; put it into one, or set its requires_grad to False")
        return found

    def moves(self, idle: Set[nn.Parameter] = frozenset(), seen: bool = True) -> bool:
        """Return whether the rounding was shown inputs that it needs, or learns parameters outside ``idle``."""
        looks = self.rounding.needs_inputs and seen
        return looks or not idle >= self.parameters()


def made(job: Reconstruction, name: str, module: nn.Module, end: End | None) -> Layer:
    """Return a layer with its unattached rounding on the initial grid."""
    hyper, axes = job.hyper, attach.weight_axes(module)
    assert axes is not None
    axis = None if hyper.w_granularity == "tensor" else axes.output
    scheme = Scheme(job.weight_bits(end), hyper.w_scheme == "symmetric", axis)
    weight = module.weight.detach()  # type: ignore[operator]
    grid = attach.weight_grid(name, weight, scheme, hyper.w_init, hyper.w_init_p, job.group_size(module))
    own = dataclasses.replace(grid, step=grid.step.clone(), zero_point=grid.zero_point.clone())
    rounding = job.rounding(in_groups(weight.clone(), grid.step), own, axes, **job.recipe.options)
    return Layer(name, module, rounding, grid)


def fit(job: Reconstruction, block: Block, layers: Sequence[Layer], x: Tensor) -> set[nn.Module]:
    """Show roundings that need inputs the inputs of their layers for ``x`` (N, ...), layer by layer.

    Return the layers with inputs: the block may never call a layer, or read its weight without a call.

    Raises:
        NumericalError: a rounding can't use the inputs; the message names the layer.
    """
    seen, inputs = set[nn.Module](), None
    for layer in layers:
        if layer.rounding.needs_inputs:
            if inputs is None or not inputs.serve(layer.module):
                inputs = LayerInputs(job, block, layer.module, x, inputs)
            try:
                layer.rounding.fit(layer.weight().clone(), inputs)
            except ValueError as error:
                raise NumericalError(
                    f"layer {layer.name}: {error}; look for them in the checkpoint and the samples"
                ) from error
            if inputs.any():
                seen.add(layer.module)
    return seen


def learned(layers: Sequence[Layer], idle: Set[nn.Parameter], seen: Set[nn.Module]) -> dict[str, Any]:
    """Return, for the record, whether the layers learned anything, and which layers unexpectedly did not change.

    Args:
        layers: of a block, with their roundings.
        idle: parameters that the optimisation did not change.
        seen: modules whose rounding was shown inputs.
    """
    moved = (
        []
        if all(layer.nearest() for layer in layers)
        else [layer for layer in layers if layer.moves(idle, layer.module in seen)]
    )
    rest = [layer for layer in layers if layer.moves() and layer not in moved]
    nearest = [layer.name for layer in rest if layer.nearest()]
    started = [layer.name for layer in rest if layer.name not in nearest]
    return {"learned": bool(moved), "nearest": nearest, "started": started}


def harden(layers: Sequence[Layer]) -> Result:
    """Replace each rounding by its codes times its step, in float32; return the stored codes."""
    found: Result = {}
    for layer in layers:
        grid, codes = layer.rounding.final_grid(), layer.returned("codes")
        attach.bake(layer.module, codes * grid.step)
        stored = store_codes(layer.name, codes, grid, layer.given)
        stored = stored.reshape(layer.module.weight.shape)  # type: ignore[arg-type]
        start = layer.given.zero_point
        moved = None if torch.equal(start, grid.zero_point) else start
        found[f"{WEIGHT}{layer.name}"] = Stored(grid, stored, layer.given.step, moved)
    return found


def parameter_groups(roundings: Sequence[Rounding], job: Reconstruction) -> list[ParameterGroup]:
    """Return the roundings' parameters by rate and schedule, for one fused optimiser call instead of one per layer."""
    merged: dict[tuple[float, str], list[nn.Parameter]] = {}
    for rounding in roundings:
        for name, parameters in rounding.groups().items():
            lr, schedule = (_of_group(key, name, rounding, job) for key in ("lr", "schedule"))
            merged.setdefault((lr, schedule), []).extend(parameters)
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
