"""Seconds of the step search, and its error against the oracle.

Asymmetric per tensor over a million weights, then the weights of one LLaMA-7B layer, 8 bit per channel.
"""

import time

import torch

from flexround.quant.grid import Scheme
from flexround.quant.search import initial_grid, mean_error


def main() -> None:
    """Print one line per bit width, and one for the layer."""
    torch.set_num_threads(2)
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)) + 0.3
    small = x[:20_000]
    for bits in (8, 4, 3, 2):
        scheme = Scheme(bits, symmetric=False)
        start = time.perf_counter()
        initial_grid(x, scheme)
        seconds = time.perf_counter() - start
        oracle, fast = (mean_error(small, initial_grid(small, scheme, m), None, 2.4) for m in ("mse-exact", "mse"))
        print(f"{bits} bit: {seconds:.3f} s for 1 M weights; error {(fast / oracle).item():.4f} x the oracle's (20 k)")
    layer = 4 * [(4096, 4096)] + 2 * [(11008, 4096)] + [(4096, 11008)]
    weights = [0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in layer]
    start = time.perf_counter()
    for weight in weights:
        initial_grid(weight, Scheme(8, symmetric=False, axis=0))
    count = sum(weight.numel() for weight in weights) / 1e6
    print(f"8 bit per channel, {count:.0f} M weights: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
