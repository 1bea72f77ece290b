"""The block protocol: how any architecture is shown to the reconstruction engine, and to equalization.

An adapter is one function ``blocks(model) -> list[Block]`` over an unmodified module. Two things must hold, and the
contract test checks them for every adapter: running the blocks one after the other equals ``model(x)``, and the first
and last block hold exactly the first and last linear layer (a user's own blocks may hold more, docs/own.md).
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

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


@dataclasses.dataclass(frozen=True)
class EqualizationGroup:
    """A chain whose inner tensors feed nothing else: two convolutions, or three with a depthwise one in the middle.

    ``convs`` are dotted names in forward order; ``activation`` tells whether a ReLU lies between them, or nothing.
    """

    convs: tuple[str, ...]
    activation: bool


class Link(NamedTuple):
    """One convolution of a chain: its dotted name, has it one filter per input channel, does a ReLU follow it."""

    name: str
    depthwise: bool
    activation: bool


def links(unit: nn.Module, name: str) -> list[Link]:
    """Return the convolutions of a unit in the order of registration; a ReLU or ReLU6 follows the one before it."""
    found: list[Link] = []
    for inner, module in unit.named_modules(prefix=name):
        if isinstance(module, nn.Conv2d):
            found.append(Link(inner, depthwise=module.groups == module.in_channels > 1, activation=False))
        elif isinstance(module, nn.ReLU | nn.ReLU6):
            found[-1] = found[-1]._replace(activation=True)
    return found


def split_chain(chain: Sequence[Link]) -> list[EqualizationGroup]:
    """Split a chain into groups that share their end convolutions (Nagel et al. 2019, section 4.1).

    A depthwise convolution has the same channels on both sides, so it joins its neighbours in one group of three.
    """
    groups = []
    start = 0
    while start < len(chain) - 1:
        stop = start + (3 if chain[start + 1].depthwise else 2)
        links = chain[start:stop]
        groups.append(EqualizationGroup(tuple(link.name for link in links), links[0].activation))
        start = stop - 1
    return groups


def groups_between_shortcuts(units: Iterable[tuple[list[Link], bool]]) -> list[EqualizationGroup]:
    """Return the groups of a network's units, each given as its convolutions and whether it has a shortcut.

    A shortcut makes a tensor feed two places or adds two tensors, and neither may be rescaled: chains end there. What
    is left are the convolutions inside each unit, and links between neighbours of which neither has a shortcut.
    """
    chains: list[list[Link]] = [[]]
    for links, shortcut in units:
        if shortcut:
            chains += [links, []]
        else:
            chains[-1] += links
    return [group for chain in chains for group in split_chain(chain)]
