"""Peak memory of a reconstruction: if it grows with the number of equal blocks, memory leaks.

    PYTHONPATH=tests python bench/memory.py               # a network in memory; --depth 16
    PYTHONPATH=tests python bench/memory.py --streamed    # a LLaMA-shaped network of 7.9 GB, read block by block

The streamed network has random weights in shards and is quantized with few samples and iterations.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch
import toy
from torch import nn

from flexround.machine import memory
from flexround.models import transformer
from flexround.models.tensors import weightless
from flexround.models.weights import Shards, Writer
from flexround.quant.flexround import FlexRound
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction, Streamed
from flexround.reconstruct.state import State
from flexround.settings.schema import Hyper

SCALE = 0.02  # standard deviation of the weights
SHARD = 2**28  # bytes
SETTINGS = toy.HYPER | {
    **{"w_scheme": "asymmetric", "w_granularity": "channel", "w_init": "minmax"},
    **{"a_scheme": "asymmetric", "a_init": "minmax", "a_init_samples": 2},
    **{"stem_bits": "low", "head_bits": "low", "head_input_bits": "low"},
}


def shell(given: argparse.Namespace) -> nn.Module:
    """Return the network without weights."""
    sizes = {"hidden_size": given.hidden, "intermediate_size": given.intermediate, "vocab_size": given.vocabulary}
    sizes |= {"num_hidden_layers": given.depth, "num_attention_heads": given.heads}
    with weightless():
        return transformer.llama("causal-lm", max_position_embeddings=given.length, **sizes)


def write(model: nn.Module, directory: Path) -> int:
    """Write random weights in shards; return their size in bytes."""
    writer, generator = Writer(directory, SHARD), torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        drawn = SCALE * torch.randn(value.shape, generator=generator)
        writer.add(name, torch.ones(value.shape) if "norm" in name else drawn)
    writer.finish()
    return sum(path.stat().st_size for path in directory.iterdir())


def streamed(directory: Path, given: argparse.Namespace) -> list[float]:
    """Write and quantize the streamed network; return the peak memory after each block in MB."""
    size = write(shell(given), directory)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"files {size / 2**20:.0f} MB; peak MB after writing them {peak:.0f}")
    cpu, shards = torch.device("cpu"), Shards(directory, shell(given))
    blocks = transformer.llama_blocks(shards.model)
    settings = Hyper.model_validate(SETTINGS | {"samples": 4, "batch": 2, "iters": 2})
    weights, recipe = Streamed(shards, blocks, cpu), toy.recipe("Q", "flexround", 8, 8)
    job = Reconstruction(shards.model, blocks, weights, recipe, settings, FlexRound, ("streaming", 0), cpu)
    ids = torch.randint(given.vocabulary, (4, 1, given.length), generator=torch.Generator().manual_seed(0))
    with State(directory / "state/run", "f" * 16).opened() as state:
        records = reconstruct(job, torch.cat([ids, torch.zeros_like(ids)], 1), state)
        state.publish(directory / "out")
    return [record["peak_mb"] for record in records]


def resident(directory: Path, given: argparse.Namespace) -> list[float]:
    """Quantize a network in memory; return the peak memory after each block in MB."""
    net = toy.model(depth=given.depth, channels=32)
    job = toy.job(toy.recipe(given.setting, "flexround", 4, 4), net=net, iters=20, samples=1024, batch=32)
    _, records, _ = toy.run(job, directory, x=toy.samples(1024, 32))
    return [record["peak_mb"] for record in records[1:]]  # without the stem


def main() -> None:
    """Print the peaks and their growth after the second block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=["B", "Q"], default="Q", help="of the network in memory")
    parser.add_argument("--depth", type=int, help="blocks; 16 in memory, 38 streamed if not given")
    parser.add_argument("--streamed", action="store_true")
    sizes = {"hidden": 2048, "intermediate": 5632, "heads": 16, "vocabulary": 32000, "length": 256}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="of the streamed network")
    given = parser.parse_args()
    given.depth = given.depth or (38 if given.streamed else 16)
    torch.set_num_threads(1)
    memory.keep_freed_memory()  # as every stage does
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        peaks = (streamed if given.streamed else resident)(Path(directory), given)
    print("peak MB after each block:", " ".join(f"{peak:.0f}" for peak in peaks))
    growth = 100 * (peaks[-1] / peaks[1] - 1)
    print(f"growth after the second block: {growth:.1f} %; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
