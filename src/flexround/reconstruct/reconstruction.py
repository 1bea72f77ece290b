"""The task of a reconstruction: the model, its blocks and their weights, resolved settings, generators."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flexround.errors import InputError, SettingsError
from flexround.machine.precision import autocast
from flexround.machine.seeding import derive
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.models.tensors import places, within
from flexround.models.weights import Shards
from flexround.quant.rounding import Axes, Rounding
from flexround.settings.schema import Hyper, Recipe

End = Literal["stem", "head"]  # the network's first or last layer


class Resident:
    """Weights of a model in memory; a block's original weights are copied if a later phase needs them.

    Attributes:
        alike: whether inputs and outputs of all blocks have one shape, so that the first block represents all.
    """

    alike = False

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._originals: dict[int, dict[str, Any]] = {}

    @contextlib.contextmanager
    def block(self, index: int, again: bool) -> Iterator[None]:
        """Restore a quantized block's original weights, or copy them if the block is needed ``again``."""
        module = self._blocks[index].module
        if index in self._originals:
            module.load_state_dict(self._originals.pop(index))
        elif again:
            self._originals[index] = {
                name: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)  # modules' extra state
                for name, value in module.state_dict().items()
            }
        yield

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: the modules outside all blocks (embeddings, last norm, head) are in memory."""
        return contextlib.nullcontext()


class Streamed:
    """Weights read from files: one block at a time, or the surroundings, of a model built without weights.

    Args:
        shards: the weights and their model, whose buffers move to ``device``.
        blocks: the model's blocks.
        device: where blocks run.

    Raises:
        SettingsError: the blocks have different shapes.
    """

    alike = True

    def __init__(self, shards: Shards, blocks: Sequence[Block], device: torch.device) -> None:
        self._shards, self._device = shards, device
        self._names = [within(block.module, shards.places) for block in blocks]
        inside = {name for names in self._names for name in names}
        self._outside = [name for name in shards.places if name not in inside]
        sizes = [[getattr(*shards.places[name]).shape for name in names] for names in self._names]
        for block, of_block in zip(blocks, sizes, strict=True):
            if of_block != sizes[0]:
                raise SettingsError(
                    f"block {block.name} differs from {blocks[0].name}: set `streamed: false` for this checkpoint"
                )
        for module in shards.model.modules():
            for name, value in module._buffers.items():
                if value is not None:
                    module._buffers[name] = value.to(device)

    def block(self, index: int, again: bool) -> contextlib.AbstractContextManager[None]:
        """Read the block's weights, and drop them afterwards."""
        return self._held(self._names[index])

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Read the weights outside all blocks, and drop them afterwards."""
        return self._held(self._outside)

    @contextlib.contextmanager
    def _held(self, names: Sequence[str]) -> Iterator[None]:
        self._shards.fill(names, self._device)
        yield
        self._shards.empty(names)


Weights = Resident | Streamed


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """A network to quantize, with all settings.

    Attributes:
        model: the model to quantize, on ``device`` or without weights, in eval mode, BN folded; changed in place.
        blocks: its blocks.
        weights: gives each block its full-precision weights.
        recipe, hyper: resolved settings.
        rounding: class of the rounding.
        seed_parts: identity from which all generators derive.
        device: where blocks run.
        mask: bool (N, T), True for the real tokens of each sample; None without padding.
        timed: called with the seconds of an early iteration of each block.

    Raises:
        InputError: a layer shares its weight with another layer, blocks share a layer, the group size doesn't divide a
            linear's input channels, or a transposed linear should get groups.
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
        """Refuse a weight in two modules and a layer in two blocks: the second would overwrite the first."""
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
        """Refuse a group size that doesn't divide a layer's input channels, and groups in a transposed linear."""
        layers = [layer for block in self.blocks for layer in attach.weight_layers(block)]
        for layer in layers if self.hyper.w_granularity == "group" else ():
            weight: Tensor = layer.weight  # type: ignore[assignment]
            size, shape = self.group_size(layer), weight.shape
            if attach.weight_axes(layer) == Axes(output=1) or (size and shape[1] % size):
                name = next(name for name, module in self.model.named_modules() if module is layer)
                raise InputError(
                    f"{name}: its {type(layer).__name__} weight of shape {tuple(shape)} can't be quantized in groups "
                    f"of {self.hyper.group_size} input channels; choose another group_size or w_granularity"
                )

    def group_size(self, layer: nn.Module) -> int | None:
        """Return the number of input channels that share a step; None for a layer without groups."""
        grouped = self.hyper.w_granularity == "group" and isinstance(layer, nn.Linear)
        return self.hyper.group_size if grouped else None

    @property
    def joint(self) -> bool:
        """Whether weights and activation steps are learned together (Q with quantized activations)."""
        return self.recipe.setting == "Q" and self.recipe.a_bits is not None

    @property
    def precision(self) -> torch.dtype:
        """Type of the factors in a block's products; TF32 is a way to multiply float32."""
        return torch.float32 if self.hyper.precision == "tf32" else getattr(torch, self.hyper.precision)

    def products(self) -> torch.autocast:
        """Return the context in which cached rows run through a block: perhaps half precision, never TF32."""
        return autocast(self.precision, self.device)

    def weight_bits(self, end: End | None) -> int:
        """Return the bits of a layer's weight; the network's first and last layer may have special bits."""
        special = {"stem": self.hyper.stem_bits, "head": self.hyper.head_bits, None: "low"}[end]
        return self.recipe.w_bits or 0 if special == "low" else int(special)

    def activation_bits(self, end: End | None) -> int:
        """Return an activation's bits; the first layer's output and the last layer's input may have special bits."""
        special = {"stem": self.hyper.stem_output_bits, "head": self.hyper.head_input_bits, None: "low"}[end]
        return self.recipe.a_bits or 0 if special == "low" else int(special)

    def mask_of(self, rows: slice) -> Tensor | None:
        """Return the mask of ``rows``, bool (n, T), on the device, or None."""
        return None if self.mask is None else self.mask[rows].to(self.device)

    def generator(self, purpose: str, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return the generator for one purpose in one block."""
        return torch.Generator(device).manual_seed(derive(*self.seed_parts, purpose, name))


def checked(kind: Any, name: str) -> type[Rounding]:
    """Return ``kind``, a class that is checked to be a rounding.

    SettingsError: the class is no subclass of ``Rounding``, or does not define ``forward``.
    """
    if not (isinstance(kind, type) and issubclass(kind, Rounding) and kind.forward is not Rounding.forward):
        raise SettingsError(f"rounding {name}: give a subclass of flexround's Rounding that defines forward")
    return kind
