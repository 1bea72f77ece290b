"""One check for all written files: their reader computes the same as the quantized network.

The network runs on an input that a seed draws from the shape, the type and the range of the samples. A copy of the
original network with the written tensors runs on the same input. The check therefore notices all else that decides an
output: an attribute, a configuration, numbers that a forward pass keeps outside buffers.
"""

import copy
from collections.abc import Collection
from typing import Any, Self

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from flexround.machine import precision, provenance
from flexround.machine.seeding import derive
from flexround.models.tensors import outputs_apart, places, tensors, unchanged

ELEMENTS = 512  # of each output that are stored
KINDS = ("float32", "bfloat16", "float16")
CLOSE = 1e-4  # of the largest output: last bits of a GPU
FLIPPED = 0.05  # of the largest output: another machine's last bits move so much where activations are quantized


class Input(BaseModel):
    """Shape, type and range of a network's inputs.

    Attributes:
        shape: of a sample, without the first dimension.
        floating: whether it holds floats, else token ids.
        low, high, mean, std: least and largest value, mean and standard deviation.
    """

    shape: tuple[int, ...]
    floating: bool
    low: float
    high: float
    mean: float
    std: float

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """Return it for samples as the network reads them, (N, ...)."""
        values = {"low": x.min(), "high": x.max(), "mean": x.double().mean(), "std": x.double().std(correction=0)}
        return cls(shape=x.shape[1:], floating=x.is_floating_point(), **{key: float(v) for key, v in values.items()})

    def draw(self, rows: int = 1) -> Tensor:
        """Return an input, float32 or int64 (rows, ...), the same for each call; the first rows of more are equal."""
        generator = torch.Generator().manual_seed(derive("check", *self.shape))
        size = (rows, *self.shape)
        if not self.floating:
            return torch.randint(int(self.low), int(self.high) + 1, size, generator=generator, device="cpu")
        drawn = [torch.randn(self.shape, generator=generator, device="cpu") for _ in range(rows)]
        return (torch.stack(drawn) * self.std + self.mean).clamp(self.low, self.high)


class Output(BaseModel):
    """A network's output for a drawn input, and the machine that computed it.

    Attributes:
        machine: all that decides the last bits; other machines may have others.
        values: some elements of each tensor, as hexadecimal floats.
    """

    machine: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, model: nn.Module, given: Any) -> Self:
        """Return it for a model's output."""
        chosen = [value.flatten()[:: -(-value.numel() // ELEMENTS)] for value in tensors(given) if value.numel()]
        values = tuple(tuple(element.hex() for element in one.double().tolist()) for one in chosen)
        return cls(machine=_machine(model), values=values)

    def tensors(self) -> list[Tensor]:
        """Return the elements, float64 each."""
        return [torch.tensor([*map(float.fromhex, each)], dtype=torch.float64, device="cpu") for each in self.values]

    def apart(self, other: "Output", quantized: bool) -> float:
        """Return how far ``other`` is off, of the largest output; 0 if that can be another machine's last bits.

        ``quantized`` tells whether activations are.
        """
        found = outputs_apart(other.tensors(), self.tensors())
        if self.machine == other.machine and "cpu" in self.machine:
            return found
        return 0.0 if found <= tolerance({*self.machine, *other.machine}, quantized) else found


def tolerance(kinds: Collection[str], quantized: bool) -> float:
    """Return how far two outputs may be apart that one network gives, by the last bits of the coarsest of the types."""
    eps = max(torch.finfo(getattr(torch, kind)).eps for kind in KINDS if kind == "float32" or kind in kinds)
    return max(3 * eps**0.5, FLIPPED if quantized else 0)


def _machine(model: nn.Module) -> tuple[str, ...]:
    """Return the type of a model's weights, and all else that decides the last bits of its output."""
    first = next(model.parameters(), torch.empty(0))
    kind, device = str(first.dtype).removeprefix("torch."), first.device.type
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    facts = torch.__version__, torch.backends.cpu.get_cpu_capability(), provenance.processor(), attention
    return kind, device, *map(str, facts), str(torch.get_num_threads())


def run(model: nn.Module, x: Tensor) -> Any:
    """Return a model's output for ``x`` (N, ...), in evaluation mode and as a job computes; its buffers stay."""
    like = next((value for value in model.parameters()), x)
    with precision.neutral(), torch.no_grad(), precision.default(like.device), unchanged(model):
        return model.eval()(x.to(like.device, like.dtype if x.is_floating_point() else x.dtype))


def outline(model: nn.Module) -> nn.Module | None:
    """Return a copy of a model whose parameters and stored buffers have no values; None if it can't be copied."""
    memo: dict[int, Tensor] = {}
    for module, leaf in places(model).values():
        value, parameter = getattr(module, leaf), leaf in module._parameters
        empty = value.detach().to("meta")
        memo[id(value)] = nn.Parameter(empty, requires_grad=False) if parameter else empty
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # of any kind: it is the user's code
        return None
