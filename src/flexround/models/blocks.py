"""The block protocol, by which the reconstruction engine and equalization see any architecture.

An adapter is one function ``blocks(model) -> list[Block]`` over an unmodified module. The contract test checks two
rules for every adapter: running the blocks in order equals ``model(x)``, and the first and last block contain exactly
the first and last linear layer (a user's own blocks may contain more, docs/own.md).
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from torch import Tensor, nn


def identity(x: Tensor) -> Tensor:
    """Return ``x``, any shape: the glue of a block that follows its predecessor directly."""
    return x


def plain(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``module(x)``, x (N, ...): the call of a block without padding."""
    return module(x)


@dataclasses.dataclass(frozen=True)
class Site:
    """A quantized activation tensor: the input or the output of a module that is called once."""

    module: nn.Module
    where: Literal["input", "output"]


@dataclasses.dataclass(frozen=True)
class Block:
    """The unit whose output is reconstructed (specification 5): residual block, inverted residual, single layer.

    Attributes:
        name: dotted name for logs, e.g. ``layer1.0``.
        module: shares its parameters with the model.
        sites: quantized activation tensors, the block's output last (the network's output has no site).
        before: unquantized glue between the previous block's output and this block's input (pooling, flatten, the
            embedding of token ids); applied once to the cached activations, not in every iteration.
        call: ``(module, x, mask) -> output``; ``mask`` is bool (N, T), True for real tokens, or None without padding.
        behind: the network's elementwise function of the output, such as the activation that follows the module; errors
            are measured after it.
        any_length: whether ``call`` accepts sequences cut after the last real token of a batch.
        keeps_strides: whether the code between blocks may depend on its inputs' strides, so that caches keep the
            network's strides; else caches store images with channels last.
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
    """Return a transformer's layers, which map hidden states (N, T, H) to hidden states, as blocks.

    The first block's input is int64 (N, 2, T): token ids, then token types, which most families ignore. The last
    block's output is the last layer's, before a final norm. Each linear of a block reads one quantized tensor;
    query, key and value read the same, and the residual reads the unquantized original. Softmax, norms, embeddings and
    heads stay in full precision (specification 5.2). ``inputs`` names a layer's modules with quantized input;
    ``embed`` computes the first layer's input.
    """
    made = []
    for i, layer in enumerate(layers):
        sites = tuple(Site(layer.get_submodule(inner), "input") for inner in inputs)
        made.append(Block(f"{name}.{i}", layer, sites, identity if i else embed, call))
    return made


def run(blocks: Iterable[Block], x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Run a model's input ``x`` (N, ...) through the blocks in order; ``mask`` is bool (N, T) or None."""
    for block in blocks:
        x = block(block.before(x), mask)
    return x


@dataclasses.dataclass(frozen=True)
class EqualizationGroup:
    """A chain whose inner tensors feed nothing else: two convolutions, or three with a depthwise one in the middle.

    ``convs`` are dotted names in forward order; ``activation`` tells whether ReLUs are between them.
    """

    convs: tuple[str, ...]
    activation: bool


class Link(NamedTuple):
    """A convolution of a chain: dotted name, whether it is depthwise, whether a ReLU follows."""

    name: str
    depthwise: bool
    activation: bool


def links(unit: nn.Module, name: str) -> list[Link]:
    """Return a unit's convolutions in registration order; a ReLU or ReLU6 belongs to the convolution before it."""
    found: list[Link] = []
    for inner, module in unit.named_modules(prefix=name):
        if isinstance(module, nn.Conv2d):
            found.append(Link(inner, depthwise=module.groups == module.in_channels > 1, activation=False))
        elif isinstance(module, nn.ReLU | nn.ReLU6):
            found[-1] = found[-1]._replace(activation=True)
    return found


def split_chain(chain: Sequence[Link]) -> list[EqualizationGroup]:
    """Split a chain into groups that share their end convolutions (Nagel et al. 2019, section 4.1).

    A depthwise convolution has the same channels on both sides, so it forms a group of three with its neighbours.
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
    """Return the groups of a network's units; a unit is its convolutions and whether it has a shortcut.

    Chains end at shortcuts: a tensor that feeds two places or is added to another can't be rescaled. The remaining
    links are convolutions inside a unit, and between neighbouring units without shortcuts.
    """
    chains: list[list[Link]] = [[]]
    for links, shortcut in units:
        if shortcut:
            chains += [links, []]
        else:
            chains[-1] += links
    return [group for chain in chains for group in split_chain(chain)]
