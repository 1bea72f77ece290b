"""Peak memory of a reconstruction after each of 16 equal blocks: if it grows, memory leaks.

PYTHONPATH=tests python bench/memory.py    # --depth 32; --setting B
"""

import argparse
import tempfile
from pathlib import Path

import torch
import toy

from flexround.machine import memory


def main() -> None:
    """Print the peaks and their growth after the second block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=["B", "Q"], default="Q")
    parser.add_argument("--depth", type=int, default=16, help="blocks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()  # as every stage does
    net = toy.model(depth=given.depth, channels=32)
    job = toy.job(toy.recipe(given.setting, "flexround", 4, 4), net=net, iters=20, samples=1024, batch=32)
    with tempfile.TemporaryDirectory() as directory:
        _, records, _ = toy.run(job, Path(directory), x=toy.samples(1024, 32))
    peaks = [record["peak_mb"] for record in records[1:]]  # without the stem
    print("peak MB after each block:", " ".join(f"{peak:.0f}" for peak in peaks))
    print(f"growth after the second block: {100 * (peaks[-1] / peaks[1] - 1):.1f} %")


if __name__ == "__main__":
    main()
