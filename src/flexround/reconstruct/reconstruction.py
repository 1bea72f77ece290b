"""What is reconstructed and how: the model, its blocks, the resolved settings, the generators."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from flexround.errors import SettingsError
from flexround.models.blocks import Block
from flexround.precision import autocast, tensor_float
from flexround.quant.rounding import Rounding
from flexround.reconstruct.weights import Weights
from flexround.seeding import derive
from flexround.settings.schema import Hyper, Recipe


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """What is reconstructed and how.

    Attributes:
        model: the model to quantize, on ``device`` or without weights, in eval mode, BN folded; changed in place.
        blocks: its blocks.
        weights: gives each block its full-precision weights.
        recipe, hyper: resolved settings.
        rounding: class of the rounding.
        seed_parts: identity that all generators derive from.
        device: where blocks run.
        mask: bool (N, T), True for the real tokens of each sample; None without padding.

    Raises:
        SettingsError: ``fused`` for a rounding that has no compiled form.
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

    def __post_init__(self) -> None:
        if self.hyper.fused and not getattr(self.rounding, "fusable", False):
            raise SettingsError(
                f"fused: true, but rounding {self.recipe.rounding} runs only as it is written; "
                "set fused: false in the recipe's hyper, or have its forward heed self.fused and say fusable = True"
            )

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

    def learning(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a block is learned."""
        return tensor_float(self.hyper.precision == "tf32")

    def weight_bits(self, index: int) -> int:
        """Bits of the weights in block ``index``: first and last layer have their own."""
        special: int | str = "low"
        if index == 0:
            special = self.hyper.stem_bits
        elif index == len(self.blocks) - 1:
            special = self.hyper.head_bits
        return self.recipe.w_bits or 0 if special == "low" else int(special)

    def activation_bits(self, index: int) -> int:
        """Bits of a block's *output*; sites inside a block have the recipe's bits."""
        special: int | str = "low"
        if index == 0:
            special = self.hyper.stem_output_bits
        elif index == len(self.blocks) - 2:
            special = self.hyper.head_input_bits
        return self.recipe.a_bits or 0 if special == "low" else int(special)

    def generator(self, purpose: str, name: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return the generator of one purpose in one block."""
        return torch.Generator(device).manual_seed(derive(*self.seed_parts, purpose, name))
