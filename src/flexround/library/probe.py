"""The check of all written files: their reader must compute the same as the quantized network.

The network runs on an input drawn with a seed from the shape, type and range of the samples. A copy of the original
network with the written tensors runs on the same input. So the check also notices differences in attributes, in the
configuration, and in numbers that a forward pass keeps outside buffers.
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

ELEMENTS = 512  # stored elements of each output
KINDS = ("float32", "bfloat16", "float16")
CLOSE = 1e-4  # relative to the largest output: last bits of a GPU
FLIPPED = 0.05  # relative to the largest output: effect of another machine's last bits on quantized activations


class Input(BaseModel):
    """Shape, type and range of a network's inputs.

    Attributes:
        shape: shape of a sample, without the first dimension.
        floating: whether samples hold floats, else token ids.
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
        """Return the description of samples in the network's form, (N, ...)."""
        values = {"low": x.min(), "high": x.max(), "mean": x.double().mean(), "std": x.double().std(correction=0)}
        return cls(shape=x.shape[1:], floating=x.is_floating_point(), **{key: float(v) for key, v in values.items()})

    def draw(self, rows: int = 1) -> Tensor:
        """Return an input, float32 or int64 (rows, ...), equal for each call; more rows begin with the same rows."""
        generator = torch.Generator().manual_seed(derive("check", *self.shape))
        size = (rows, *self.shape)
        if not self.floating:
            return torch.randint(int(self.low), int(self.high) + 1, size, generator=generator, device="cpu")
        drawn = [torch.randn(self.shape, generator=generator, device="cpu") for _ in range(rows)]
        return (torch.stack(drawn) * self.std + self.mean).clamp(self.low, self.high)


class Output(BaseModel):
    """A network's output for a drawn input, and the machine that computed it.

    Attributes:
        machine: all facts that decide the last bits, which may differ on other machines.
        values: some elements of each tensor, as hexadecimal floats.
    """

    machine: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, model: nn.Module, given: Any) -> Self:
        """Return the stored form of a model's output."""
        chosen = [value.flatten()[:: -(-value.numel() // ELEMENTS)] for value in tensors(given) if value.numel()]
        values = tuple(tuple(element.hex() for element in one.double().tolist()) for one in chosen)
        return cls(machine=_machine(model), values=values)

    def tensors(self) -> list[Tensor]:
        """Return the stored elements of each tensor, float64."""
        return [torch.tensor([*map(float.fromhex, each)], dtype=torch.float64, device="cpu") for each in self.values]

    def apart(self, other: "Output", quantized: bool) -> float:
        """Return the distance to ``other``, relative to the largest output; 0 if machines' last bits may explain it.

        ``quantized`` tells whether activations are quantized.
        """
        found = outputs_apart(other.tensors(), self.tensors())
        if self.machine == other.machine and "cpu" in self.machine:
            return found
        return 0.0 if found <= tolerance({*self.machine, *other.machine}, quantized) else found


def tolerance(kinds: Collection[str], quantized: bool) -> float:
    """Return the allowed distance of two outputs of one network: the last bits of the coarsest type."""
    eps = max(torch.finfo(getattr(torch, kind)).eps for kind in KINDS if kind == "float32" or kind in kinds)
    return max(3 * eps**0.5, FLIPPED if quantized else 0)


def _machine(model: nn.Module) -> tuple[str, ...]:
    """Return the type of a model's weights, and all other facts that decide the last bits of its output."""
    first = next(model.parameters(), torch.empty(0))
    kind, device = str(first.dtype).removeprefix("torch."), first.device.type
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    facts = torch.__version__, torch.backends.cpu.get_cpu_capability(), provenance.processor(), attention
    return kind, device, *map(str, facts), str(torch.get_num_threads())


def run(model: nn.Module, x: Tensor) -> Any:
    """Return a model's output for ``x`` (N, ...), in evaluation mode and a job's precision; buffers don't change."""
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
