"""Peak memory while a LLaMA-shaped network is streamed: is it that of one block, whatever the number of blocks?

Writes a checkpoint of random weights, a shard a layer, quantizes it with few samples and iterations, and prints the
peak of the whole process after each block beside the bytes of the files.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
import toy
from safetensors.torch import save_file
from torch import nn

from flexround import memory
from flexround.models import llama, transformer
from flexround.models.shards import INDEX, Shards
from flexround.models.tensors import weightless
from flexround.quant.flexround import FlexRound
from flexround.reconstruct import result
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.reconstruct.state import State
from flexround.reconstruct.weights import Streamed
from flexround.settings.schema import Hyper

SCALE = 0.02  # deviation of the weights
SETTINGS = toy.HYPER | {
    **{"w_scheme": "asymmetric", "w_granularity": "channel", "w_init": "minmax"},
    **{"a_scheme": "asymmetric", "a_init": "minmax", "a_init_samples": 2},
    **{"stem_bits": "low", "head_bits": "low", "head_input_bits": "low"},
}


def shell(arguments: argparse.Namespace) -> nn.Module:
    """Return the network without weights."""
    with weightless():
        return transformer.llama(
            "causal-lm",
            vocab_size=arguments.vocabulary,
            hidden_size=arguments.hidden,
            intermediate_size=arguments.intermediate,
            num_hidden_layers=arguments.layers,
            num_attention_heads=arguments.heads,
            max_position_embeddings=arguments.length,
        )


def write(model: nn.Module, directory: Path) -> int:
    """Write random weights, a shard a layer and one for the rest; return their bytes."""
    shards: dict[str, list[str]] = {}
    for name in model.state_dict():
        parts = name.split(".")
        shards.setdefault(parts[2] if "layers" in parts else "rest", []).append(name)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    files = {}
    for shard, names in shards.items():
        tensors = {name: SCALE * torch.randn(shapes[name], generator=generator) for name in names}
        tensors |= {name: torch.ones(shapes[name]) for name in names if "norm" in name}
        save_file(tensors, directory / f"model-{shard}.safetensors")
        files |= dict.fromkeys(names, f"model-{shard}.safetensors")
    (directory / INDEX).write_text(json.dumps({"weight_map": files}))
    return sum(path.stat().st_size for path in directory.iterdir())


def quantize(directory: Path, arguments: argparse.Namespace) -> list[float]:
    """Quantize the streamed network; return the peak memory after each block in MB."""
    shards = Shards(directory, shell(arguments))
    blocks = llama.blocks(shards.model)
    cpu = torch.device("cpu")
    sizes = {"samples": arguments.samples, "batch": arguments.batch, "iters": arguments.iters}
    settings = Hyper.model_validate(SETTINGS | sizes)
    recipe = toy.recipe("Q", "flexround", 8, 8)
    weights = Streamed(shards, blocks, cpu)
    job = Reconstruction(shards.model, blocks, weights, recipe, settings, FlexRound, ("streaming", 0), cpu)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(arguments.vocabulary, (arguments.samples, 1, arguments.length), generator=generator)
    tokens = torch.cat([ids, torch.zeros_like(ids)], 1)
    with State(directory / "state/run", "f" * 16).opened() as state:
        host = None if arguments.cache_mb is None else arguments.cache_mb * 2**20
        records = reconstruct(job, tokens, state, host)
        result.publish(directory / "out", state, {})
    return [record["peak_mb"] for record in records]


def main() -> None:
    """Print the peaks and their growth after the second block."""
    parser = argparse.ArgumentParser(description=__doc__)
    numbers = {"hidden": 2048, "layers": 38, "intermediate": 5632, "heads": 16, "vocabulary": 32000, "length": 256}
    for name, value in (numbers | {"samples": 4, "batch": 2, "iters": 2}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--cache-mb", type=int, help="memory for caches; 0 puts them into files")
    parser.add_argument("--directory", type=Path, help="where checkpoint and result are made, and removed again")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()  # as every stage does
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        size = write(shell(arguments), Path(directory))
        written = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        start = time.perf_counter()
        peaks = quantize(Path(directory), arguments)
    seconds = time.perf_counter() - start
    print(f"files {size / 2**20:.0f} MB; peak MB after writing them {written:.0f}, after each block:")
    print(" ".join(f"{peak:.0f}" for peak in peaks))
    print(f"growth after the second block: {100 * (peaks[-1] / peaks[1] - 1):.1f} %; {seconds:.0f} s")


if __name__ == "__main__":
    main()
