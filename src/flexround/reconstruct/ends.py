"""The first and the last layer of a network, and the activations beside them: these may have bits of their own."""

from torch import Tensor, nn

from flexround.models.blocks import Site
from flexround.models.surgery import attach
from flexround.reconstruct.inputs import called
from flexround.reconstruct.reconstruction import End, Reconstruction


def of(job: Reconstruction, index: int, x: Tensor) -> dict[nn.Module | Site, End]:
    """Return the network's first and last layer, and the sites of what the first gives and the last reads.

    Blocks quantize outputs or the inputs of layers: then what the first layer gives is what the second reads.

    Args:
        job: model and settings.
        index: of the block whose layers and sites are looked at.
        x: (n, ...) the block's input.
    """
    blocks, block, last = job.blocks, job.blocks[index], len(job.blocks) - 1
    ends: dict[nn.Module | Site, End] = {}
    outputs = [site for site in block.sites[-1:] if site.where == "output"]
    if index in (0, last - 1):
        ends |= dict.fromkeys(outputs, "stem" if index == 0 else "head")
    calls = called(job, block, x) if index in (0, 1, last) else []
    stem = head = None
    if calls and index == last:
        ends[calls[-1][0]], head = "head", calls[-1][1]
    if calls and index == 0:
        ends[calls[0][0]], stem = "stem", calls[1][1] if len(calls) > 1 else None
    elif calls and index == 1 and len(attach.weight_layers(blocks[0])) == 1:
        stem = calls[0][1] if all(site.where == "input" for site in blocks[0].sites) else None
    for layer, seen in calls:
        if seen is head or seen is stem:
            ends[Site(layer, "input")] = "head" if seen is head else "stem"
    return ends
