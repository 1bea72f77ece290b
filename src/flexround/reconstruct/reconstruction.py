"""The task of a reconstruction: the model, its blocks, the resolved settings, the generators."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flexround.errors import InputError, SettingsError
from flexround.machine.precision import autocast
from flexround.machine.seeding import derive
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.models.tensors import places
from flexround.quant.rounding import Axes, Rounding
from flexround.reconstruct.weights import Weights
from flexround.settings.schema import Hyper, Recipe

NO_SIZE = "no size from 8 divides those of all layers: set w_granularity to channel"
End = Literal["stem", "head"]  # the network's first or last layer


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """A network to be quantized, and all settings.

    Attributes:
        model: the model to quantize, on ``device`` or without weights, in eval mode, BN folded; changed in place.
        blocks: its blocks.
        weights: gives each block its full-precision weights.
        recipe, hyper: resolved settings.
        rounding: class of the rounding.
        seed_parts: identity that all generators derive from.
        device: where blocks run.
        mask: bool (N, T), True for the real tokens of each sample; None without padding.
        timed: told the seconds of an early iteration of each block.

    Raises:
        InputError: layers of the blocks share their weight with another layer, blocks share a layer, the size of groups
            doesn't divide a linear's input channels, or groups of a transposed linear are asked for.
    """

    model: nn.Module
    blocks: Sequence[Block]
    weights: Weights
    recipe: Recipe
    hyper: Hyper
    rounding: Callable[..., Rounding]
    seed_parts: tuple[object, ...]
    device: torch.device
    mask: Tensor | None = None
    timed: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        self._refuse_shared()
        self._refuse_group_size()

    def _refuse_shared(self) -> None:
        """Refuse a weight that two modules hold, and a layer in two blocks: the second would write over the first."""
        holders: dict[int, dict[nn.Module, str]] = {}
        for name, (module, leaf) in places(self.model).items():
            value = getattr(module, leaf)
            holders.setdefault(value.data_ptr() or id(value), {})[module] = name
        layers = [layer for block in self.blocks for layer in attach.weight_layers(block)]
        for layer in layers:
            held = holders.get(layer.weight.data_ptr() or id(layer.weight), {})  # type: ignore[operator]
            if len(held) > 1:
                raise InputError(f"{', '.join(held.values())} are one tensor; give each layer a copy of its own")
            if layers.count(layer) > 1:
                raise InputError(f"{', '.join(held.values())}: in several blocks; put each layer into one")

    def _refuse_group_size(self) -> None:
        """Refuse a size of groups that doesn't divide a layer's input channels, with those that divide all.

        A transposed linear is refused, too: groups lie along the last axis of a weight.
        """
        names = {module: name for name, module in self.model.named_modules()}
        every = [layer for block in self.blocks for layer in attach.weight_layers(block)]
        transposed = [layer for layer in every if attach.weight_axes(layer) == Axes(output=1)]
        if self.hyper.w_granularity == "group" and transposed:
            raise InputError(
                f"{names[transposed[0]]}: is a Conv1D of transformers, whose transposed weight can't be quantized in "
                "groups; set w_granularity to channel"
            )
        layers = [layer for layer in every if self.group_size(layer)]
        features = {layer: layer.weight.shape[1] for layer in layers}  # type: ignore[index]
        wrong = [layer for layer in layers if features[layer] % self.hyper.group_size]
        if wrong:
            common = math.gcd(*features.values())
            fitting = ", ".join(str(size) for size in range(8, common + 1) if common % size == 0)
            raise InputError(
                f"{names[wrong[0]]}: its {features[wrong[0]]} input channels are no multiple of group_size, "
                f"{self.hyper.group_size}; " + (f"for all layers take one of {fitting}" if fitting else NO_SIZE)
            )

    def group_size(self, layer: nn.Module) -> int | None:
        """Return how many input channels of a layer have a step together; None if its steps are not for groups."""
        grouped = self.hyper.w_granularity == "group" and isinstance(layer, nn.Linear)
        return self.hyper.group_size if grouped else None

    @property
    def joint(self) -> bool:
        """Whether weights and activation steps are learned together (Q with quantized activations)."""
        return self.recipe.setting == "Q" and self.recipe.a_bits is not None

    @property
    def precision(self) -> torch.dtype:
        """Type of the factors of a block's products; TF32 is a way to multiply float32."""
        return torch.float32 if self.hyper.precision == "tf32" else getattr(torch, self.hyper.precision)

    def products(self) -> torch.autocast:
        """Return the context in which cached rows run through a block: half precision, but never TF32."""
        return autocast(self.precision, self.device)

    def weight_bits(self, end: End | None) -> int:
        """Return the bits of a layer's weight; the network's first and last layer may have their own."""
        special = {"stem": self.hyper.stem_bits, "head": self.hyper.head_bits, None: "low"}[end]
        return self.recipe.w_bits or 0 if special == "low" else int(special)

    def activation_bits(self, end: End | None) -> int:
        """Return the bits of an activation; the first layer's output and the last layer's input may have their own."""
        special = {"stem": self.hyper.stem_output_bits, "head": self.hyper.head_input_bits, None: "low"}[end]
        return self.recipe.a_bits or 0 if special == "low" else int(special)

    def mask_of(self, rows: slice) -> Tensor | None:
        """Return the mask of some rows, bool (n, T), on the device."""
        return None if self.mask is None else self.mask[rows].to(self.device)

    def generator(self, purpose: str, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return the generator of one purpose in one block."""
        return torch.Generator(device).manual_seed(derive(*self.seed_parts, purpose, name))


def checked(kind: Any, name: str) -> type[Rounding]:
    """Return a class that can be a rounding.

    Raises:
        SettingsError: it is no subclass of ``Rounding``, or has no ``forward`` of its own.
    """
    if not (isinstance(kind, type) and issubclass(kind, Rounding)):
        raise SettingsError(f"rounding {name}: is no subclass of flexround's Rounding; give such a class")
    if kind.forward is Rounding.forward:
        raise SettingsError(f"rounding {name}: has no forward of its own; write one that returns the rounded weight")
    return kind
