"""The block protocol: how any architecture is shown to the reconstruction engine.

An adapter is one function ``blocks(model) -> list[Block]`` over an unmodified module. Two things must hold, and the
contract test checks them for every adapter: running the blocks one after the other equals ``model(x)``, and the first
and last block hold exactly the first and last linear layer (a user's own blocks may hold more, docs/own.md).
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from torch import Tensor, nn


def identity(x: Tensor) -> Tensor:
    """Return ``x``, any shape: the glue of a block that follows its predecessor directly."""
    return x


def plain(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``module(x)``, x (N, ...): the call of a block that knows no padding."""
    return module(x)


@dataclasses.dataclass(frozen=True)
class Site:
    """An activation tensor that is quantized: the input or the output of a module, which must be called once."""

    module: nn.Module
    where: Literal["input", "output"]


@dataclasses.dataclass(frozen=True)
class Block:
    """The unit whose output is reconstructed (specification 5): residual block, inverted residual, single layer.

    Attributes:
        name: dotted name for logs, e.g. ``layer1.0``.
        module: shares its parameters with the model.
        sites: activation tensors quantized inside, the block output last (no site on the network's output).
        before: glue between the previous block's output and this one's input (pooling, flatten, the embedding of
            token ids); applied once to the cached activations, not in every iteration; not quantized.
        call: ``(module, x, mask) -> output``; ``mask`` is bool (N, T), True for real tokens, or None without padding.
        behind: what the network computes of the output element by element, such as the activation that follows the
            module; errors are measured behind it.
        any_length: whether ``call`` takes sequences that end before the samples do, where all rows have padding.
        keeps_strides: whether the code between blocks may depend on the strides of what it reads, so that caches keep
            those that the network gives; else images are kept with their channels last.
    """

    name: str
    module: nn.Module
    sites: tuple[Site, ...] = ()
    before: Callable[[Tensor], Tensor] = identity
    call: Callable[[nn.Module, Tensor, Tensor | None], Tensor] = plain
    behind: Callable[[Tensor], Tensor] = identity
    any_length: bool = True
    keeps_strides: bool = False

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the block's output (N, ...) for ``x`` (N, ...); ``mask`` is bool (N, T) or None."""
        return self.call(self.module, x, mask)


def layer_blocks(
    name: str,
    layers: Iterable[nn.Module],
    inputs: Sequence[str],
    embed: Callable[[Tensor], Tensor],
    call: Callable[[nn.Module, Tensor, Tensor | None], Tensor],
) -> list[Block]:
    """Return a transformer's layers, hidden states (N, T, H) to the same, as blocks.

    The first block's input is int64 (N, 2, T): token ids, then token types, which most families ignore. The last
    block's output is that of the last layer, before a final norm. Each linear of a block reads one quantized tensor;
    query, key and value share theirs, and the residual reads the unquantized original. Softmax, norms, embeddings and
    heads stay in full precision (specification 5.2). ``inputs`` names the modules of a layer whose input is quantized;
    ``embed`` makes the first layer's input.
    """
    made = []
    for i, layer in enumerate(layers):
        sites = tuple(Site(layer.get_submodule(inner), "input") for inner in inputs)
        made.append(Block(f"{name}.{i}", layer, sites, identity if i else embed, call))
    return made


def run(blocks: Iterable[Block], x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Run ``x`` (N, ...), a model's input, through the blocks in order; ``mask`` is bool (N, T) or None."""
    for block in blocks:
        x = block(block.before(x), mask)
    return x
