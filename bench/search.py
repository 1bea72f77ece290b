"""Seconds of the step search: 8 bit asymmetric per tensor over a million weights, and its error against the oracle."""

import time

import torch

from flexround.quant.grid import Scheme
from flexround.quant.search import initial_grid, mean_error


def main() -> None:
    """Print one line per bit width."""
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


if __name__ == "__main__":
    main()
