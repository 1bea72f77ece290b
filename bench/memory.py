"""Peak memory while reconstructing: does it grow with depth? Equal blocks, so only a leak can make it grow."""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
import toy

from flexround import memory


def main() -> None:
    """Print the peak after each block and its growth after the second residual block."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--setting", choices=["B", "Q"], default="Q")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()  # as every stage does
    net = toy.model(depth=arguments.depth, channels=32)
    job = toy.job(toy.recipe(arguments.setting, "flexround", 4, 4), net=net, iters=20, samples=1024, batch=32)
    with tempfile.TemporaryDirectory() as directory:
        _, records, _ = toy.run(job, directory, x=toy.samples(1024, 32))
    peaks = [record["peak_mb"] for record in records]
    print("peak MB after each block:", " ".join(f"{peak:.0f}" for peak in peaks))
    print(f"growth after the second residual block: {100 * (peaks[-1] / peaks[2] - 1):.1f} %")


if __name__ == "__main__":
    main()
