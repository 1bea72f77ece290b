"""Convolutions that cross-layer equalization may rescale against each other."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import nn


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
