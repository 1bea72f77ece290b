"""What a run costs, from its settings and the size of its network: the formulas behind ``make plan``.

One reconstruction iteration is a forward pass, a weight gradient and an input gradient; summed over the blocks this is
three forward passes of the network, whatever the number of blocks. A small network's time is the launching of kernels,
a large one's the arithmetic: the estimate is the larger of the two.
"""

import dataclasses

from flexround.settings.schema import Hyper, Recipe

FLOP_PER_SECOND = 62.4e12  # 40 % of an A100's TF32 peak
SECONDS_PER_LAUNCHED_ITERATION = 4e-3  # one block, eager PyTorch on a GPU; a planning value, not a measurement
CACHES = 3  # full-precision input, quantized input, target
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class Network:
    """Size of a network.

    Attributes:
        flop: of one sample's forward pass (2 per multiply-add).
        blocks: units of reconstruction.
        largest: elements of the largest activation between two blocks, one sample.
    """

    flop: float
    blocks: int
    largest: int


def reconstruction_seconds(network: Network, recipe: Recipe, hyper: Hyper) -> float:
    """Return the estimated GPU seconds of one reconstruction."""
    iterations = hyper.iters
    if recipe.setting == "B" and recipe.a_bits:
        iterations += hyper.a_iters
    arithmetic = 3 * network.flop * hyper.batch * iterations / FLOP_PER_SECOND
    return max(arithmetic, network.blocks * iterations * SECONDS_PER_LAUNCHED_ITERATION)


def cache_bytes(network: Network, hyper: Hyper) -> int:
    """Return the bytes of the activation caches at the widest block boundary."""
    return CACHES * hyper.samples * network.largest * BYTES[hyper.cache_dtype]


def state_bytes(network: Network, hyper: Hyper) -> int:
    """Return the bytes on disk that one unfinished reconstruction needs: two carried activations, old and new."""
    return 4 * hyper.samples * network.largest * BYTES[hyper.cache_dtype]
