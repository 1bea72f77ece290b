"""Attach roundings to weights and quantizers to activations of an unmodified model, and detach them again."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from flexround.models.blocks import Block, Site
from flexround.models.trace import first_argument, with_first
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.grid import Grid, Scheme, in_groups
from flexround.quant.rounding import Axes, Rounding
from flexround.quant.search import initial_grid

TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")


def weight_axes(module: nn.Module) -> Axes | None:
    """Return the channel axes of a module's weight, or None for modules other than linears and convolutions.

    transformers' ``Conv1D`` (a linear with a transposed weight) is recognised by name, because importing takes seconds.
    """
    if isinstance(module, nn.Linear):
        return Axes(output=0)
    if isinstance(module, nn.Conv2d):
        return Axes(output=0, input=1)
    if any((kind.__module__, kind.__name__) == TRANSPOSED for kind in type(module).__mro__):  # parametrized: a subclass
        return Axes(output=1)
    return None


def weight_layers(block: Block) -> list[nn.Module]:
    """Return a block's modules with quantized weights, in registration order, each once."""
    return list(dict.fromkeys(module for module in block.module.modules() if weight_axes(module)))


def weight_grid(weight: Tensor, scheme: Scheme, method: str, p: float, group_size: int | None = None) -> Grid:
    """Return the initial grid of a weight of any shape; the step is (), per channel, or per group of a linear.

    ``scheme``, ``method`` and ``p`` are those of ``initial_grid``. ``group_size`` is the number of input channels that
    share a step, a divisor of all input channels; the weight is then (Cout, Cin) and the scheme per channel.
    """
    if group_size is None:
        return initial_grid(weight, scheme, method, p)
    grid = initial_grid(weight.reshape(-1, group_size), scheme, method, p)
    step, zero_point = (each.view(len(weight), -1, 1) for each in (grid.step, grid.zero_point))
    return dataclasses.replace(grid, step=step, zero_point=zero_point)


class _Rounded(nn.Module):
    """A rounding attached to a weight: it computes in float32, as for the final codes, in blocks of any precision.

    Only compiled formulas see autocast, since they return the type in which autocast multiplies.
    """

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding

    def forward(self, weight: Tensor) -> Tensor:
        """Return the rounded weight, any shape; a rounding in groups gets (Cout, Cin) as (Cout, groups, size)."""
        rounding, kind = self.rounding, weight.device.type
        plain = torch.is_autocast_enabled(kind) and not (rounding.fused and rounding.fusable)
        with torch.autocast(kind, enabled=False) if plain else contextlib.nullcontext():
            return rounding(in_groups(weight, rounding.grid.step)).reshape(weight.shape)


def attach_rounding(module: nn.Module, rounding: Rounding) -> None:
    """Make ``module.weight`` the output of ``rounding``; the original stays at ``parametrizations.weight.original``."""
    parametrize.register_parametrization(module, "weight", _Rounded(rounding), unsafe=True)


def original_weight(module: nn.Module) -> Tensor:
    """Return the original weight below a rounding, shape of ``module.weight``."""
    return module.parametrizations.weight.original  # type: ignore[union-attr,return-value]


def bake(module: nn.Module, values: Tensor) -> None:
    """Remove the rounding, if any, and set ``module.weight`` to ``values``, in its shape or in groups."""
    if parametrize.is_parametrized(module, "weight"):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    with torch.no_grad():
        module.weight.copy_(values.reshape(module.weight.shape))  # type: ignore[operator,arg-type]


def strip(model: nn.Module) -> None:
    """Remove a model's roundings and activation quantizers; restore the original weights."""
    for module in model.modules():
        if weight_axes(module) and parametrize.is_parametrized(module, "weight"):
            bake(module, original_weight(module).detach().clone())
        for hooks, ours in ((module._forward_pre_hooks, _quantize_input), (module._forward_hooks, _quantize_output)):
            for key in [key for key, hook in hooks.items() if hook is ours]:
                del hooks[key]
    for module in list(model.modules()):
        for where in ("input", "output"):
            module._modules.pop(f"{where}_quantizer", None)


def quantizer_name(site: Site) -> str:
    """Return the attribute of a site's module that holds the quantizer."""
    return f"{site.where}_quantizer"


def attach_quantizer(site: Site, quantizer: nn.Module) -> None:
    """Quantize a site's tensor from now on; a second call replaces the quantizer."""
    name = quantizer_name(site)
    if not hasattr(site.module, name):
        if site.where == "input":
            site.module.register_forward_pre_hook(_quantize_input, with_kwargs=True)
        else:
            site.module.register_forward_hook(_quantize_output)
    setattr(site.module, name, quantizer)


def attached_quantizer(site: Site) -> ActivationQuantizer:
    """Return the quantizer at a site."""
    return getattr(site.module, quantizer_name(site))


def quantizers(block: Block) -> Iterator[ActivationQuantizer]:
    """Yield the activation quantizers of a block in execution order."""
    for site in block.sites:
        if hasattr(site.module, quantizer_name(site)):
            yield attached_quantizer(site)


def _quantize_input(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook. It finds the quantizer on the module, so that copies of the model use their own quantizers.

    The input is the first argument; OPT passes its attention's input by name.
    """
    quantized = module.input_quantizer(first_argument(arguments, keywords))  # type: ignore[operator]
    return with_first(arguments, keywords, quantized)


def _quantize_output(module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook."""
    return module.output_quantizer(output)  # type: ignore[operator]


def real(x: Tensor, kept: Tensor) -> Tensor:
    """Return the tokens of ``x`` that ``kept``, bool (n, T), selects, or all of ``x`` if the shapes don't match.

    ``x`` is (n, T, ...), OPT's (n * T, C), or (n, heads, T, C). Experts read some tokens, in another order.
    """
    if x.ndim > 2 and x.shape[:2] == kept.shape:
        return x[kept]
    if x.ndim == 2 and len(x) == kept.numel():
        return x[kept.flatten()]
    if x.ndim == 4 and (len(x), x.shape[2]) == kept.shape:
        return x.transpose(1, 2)[kept]
    return x


class Observer(nn.Module):
    """A site's quantizer during calibration: its grid comes from the first tensor it sees, or from `fix`.

    ``kept``, bool (n, T), selects the tokens that count for the grid; None selects all. With ``waiting``, it returns
    tensors unchanged until `fix` is called. It adds itself to ``waiting`` in call order, the first with its tensor.
    """

    def __init__(
        self,
        scheme: Scheme,
        method: str,
        p: float,
        kept: Tensor | None = None,
        waiting: dict["Observer", Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.scheme, self.method, self.p, self.kept, self.waiting = scheme, method, p, kept, waiting
        self.quantizer: ActivationQuantizer | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the quantized ``x``, same shape, so that later sites are calibrated on quantized inputs."""
        if not x.numel():  # experts may be called without rows
            return x
        if self.quantizer is None and self.waiting is not None:
            self.waiting.setdefault(self, x.new_empty(0) if self.waiting else x.clone())  # the block may write on x
            return x
        if self.quantizer is None:
            self.fix(x if self.kept is None else real(x, self.kept))
        return self.quantizer(x)  # type: ignore[misc]

    def fix(self, seen: Tensor) -> None:
        """Set the grid from ``seen``, any shape."""
        self.quantizer = ActivationQuantizer(initial_grid(seen.float(), self.scheme, self.method, self.p))
