"""CPU seconds and peak memory of `flexround.quantize` and of auto-round on one causal language model.

    python bench/rival.py MODEL TEXT --auto-round-python PYTHON [--methods signround flexround gptq] [--repeats 3]

MODEL is a transformers directory, or a GGUF file such as SmolLM2's from the scale real; TEXT is a text file of at least
200 kB. PYTHON is the interpreter of an environment with auto-round. The work: the first layers, W4 asymmetric in groups
of 64, rows of 256 tokens, batches of 2. Each measurement is a process with one thread; ours and auto-round alternate.
Figures cover the call, without loading and imports of torch. The perplexity is for the whole model.
"""

import argparse
import copy
import ctypes
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

LAYERS, SAMPLES, LENGTH, EVALUATED, ITERS = 6, 64, 256, 32, 50


def load(path: Path, layers: int | None = None) -> tuple[nn.Module, Any]:
    """Return a model, or a model with only its first layers, and its tokenizer."""
    where = {} if path.is_dir() else {"gguf_file": path.name}
    directory = path if path.is_dir() else path.parent
    full = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **where)
    config = copy.deepcopy(full.config)
    config.num_hidden_layers = layers or config.num_hidden_layers
    config.__dict__.pop("quantization_config", None)
    model = type(full)(config)
    model.load_state_dict({key: value for key, value in full.state_dict().items() if key in model.state_dict()})
    return model.eval(), transformers.AutoTokenizer.from_pretrained(directory, **where)


def rows(tokenizer: Any, path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return token ids, int64 (count, 256), for calibration, and the following token ids for the perplexity."""
    ids = torch.tensor(tokenizer(path.read_text(errors="ignore"))["input_ids"])
    found = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    return found[:count], found[count : count + EVALUATED]


@torch.no_grad()
def perplexity(path: Path, part: nn.Module, ids: Tensor) -> float:
    """Return the perplexity on token ids, int64 (N, T), of the whole model including the quantized layers."""
    model, _ = load(path)
    model.load_state_dict(part.float().state_dict(), strict=False)
    return math.exp(statistics.mean(model(row[None], labels=row[None]).loss.item() for row in ids))


def ours(model: nn.Module, method: str, ids: Tensor, options: argparse.Namespace) -> nn.Module:
    """Quantize with the library."""
    flexround = importlib.import_module("flexround")
    hyper: dict[str, Any] = {"batch": 2, "w_granularity": "group", "group_size": 64, "w_init": "minmax"}
    if method != "gptq":
        hyper |= {"iters": ITERS, "lr": 1 / ITERS if method == "signround" else 2e-3}
    return flexround.quantize(model, ids, f"b-{method}-w4", progress=False, inplace=options.inplace, **hyper).model


def theirs(model: nn.Module, ids: Tensor, tokenizer: Any) -> nn.Module:
    """Quantize with auto-round in float32."""
    rounded = importlib.import_module("auto_round").AutoRound(
        model,
        tokenizer,
        scheme={"bits": 4, "group_size": 64, "sym": False, "data_type": "int"},
        iters=ITERS,
        nsamples=len(ids),
        seqlen=LENGTH,
        batch_size=2,
        dataset=torch.utils.data.DataLoader(ids, batch_size=2),  # type: ignore[arg-type]
        device_map="cpu",
        amp=False,
    )
    return rounded.quantize()[0]


def child(options: argparse.Namespace) -> dict[str, float]:
    """Measure one method in this process."""
    torch.set_num_threads(1)
    model, tokenizer = load(options.model, LAYERS)
    calibration, held = rows(tokenizer, options.text, SAMPLES)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    cpu, wall = sum(os.times()[:4]), time.perf_counter()  # includes compilers run as children
    if options.child == "auto-round":
        made = theirs(model, calibration, tokenizer)
    else:
        made = ours(model, options.child, calibration, options)
    cpu, wall = sum(os.times()[:4]) - cpu, time.perf_counter() - wall
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    return {"cpu": cpu, "wall": wall, "peak": peak, "perplexity": perplexity(options.model, made, held)}


def measured(python: str, method: str) -> dict[str, float]:
    """Run this file in a separate process; return its figures."""
    command = [python, __file__, *sys.argv[1:], "--child", method]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a line for each method: median CPU seconds, seconds, peak in MB, perplexity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--auto-round-python", help="without it ours alone are measured")
    parser.add_argument("--methods", nargs="+", default=["signround", "flexround", "gptq"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--inplace", action="store_true", help="ours change the model itself, as auto-round does")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options)))
        return
    methods = [*options.methods, *(["auto-round"] if options.auto_round_python else [])]
    pythons = {"auto-round": options.auto_round_python}
    rounds = [
        {each: measured(pythons.get(each, sys.executable), each) for each in methods} for _ in range(options.repeats)
    ]
    for method in methods:
        runs = [found[method] for found in rounds]
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(method, " ".join(f"{key} {value:.2f}" for key, value in middle.items()))


if __name__ == "__main__":
    main()
