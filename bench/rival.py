"""CPU seconds and peak memory of `flexround.quantize` beside auto-round's on one causal language model.

    python bench/rival.py MODEL TEXT --auto-round-python PYTHON [--methods signround flexround gptq] [--repeats 3]

MODEL is a transformers directory, or a GGUF file such as SmolLM2's of the scale real; TEXT is a text file of 200 kB or
more. PYTHON is an interpreter of an environment with auto-round. The work: the first layers, W4 asymmetric in groups of
64, rows of 256 tokens, batches of 2. Each measurement is a process with one thread; ours and auto-round take turns.
Figures are those of the call, without loading and imports of torch. The perplexity is that of the whole model.
The method `arithmetic` is GPTQ's alone, on random inputs: moments, inverses, columns. `pass` is one forward pass.
"""

import argparse
import copy
import importlib
import json
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

LENGTH, EVALUATED = 256, 32


def load(path: Path, layers: int | None = None) -> tuple[nn.Module, Any]:
    """Return a model, or a model of its first layers, and its tokenizer."""
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
    """Return token ids, int64 (count, 256), to calibrate with, and those behind them to measure the perplexity."""
    ids = torch.tensor(tokenizer(path.read_text(errors="ignore"))["input_ids"])
    found = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    return found[:count], found[count : count + EVALUATED]


@torch.no_grad()
def perplexity(path: Path, part: nn.Module, ids: Tensor) -> float:
    """Return the perplexity on token ids, int64 (N, T), of the whole model with the quantized layers in it."""
    model, _ = load(path)
    model.load_state_dict(part.float().state_dict(), strict=False)
    losses = [model(row[None], labels=row[None]).loss.item() for row in ids]
    return float(torch.tensor(losses).mean().exp())


def ours(model: nn.Module, method: str, ids: Tensor, options: argparse.Namespace) -> nn.Module:
    """Quantize by the library."""
    flexround = importlib.import_module("flexround")
    hyper: dict[str, Any] = {"batch": 2, "w_granularity": "group", "group_size": 64, "w_init": "minmax"}
    if method != "gptq":
        rate = 1 / options.iters if method == "signround" else 2e-3
        hyper |= {"fused": options.fused, "iters": options.iters, "lr": rate, "precision": options.precision}
    made = flexround.quantize(model, ids, f"b-{method}-w4", progress=False, inplace=options.inplace, **hyper)
    return made.model


def theirs(model: nn.Module, ids: Tensor, tokenizer: Any, options: argparse.Namespace) -> nn.Module:
    """Quantize by auto-round; the loss of padded positions and its range of steps are its defaults."""
    rounded = importlib.import_module("auto_round").AutoRound(
        model,
        tokenizer,
        scheme={"bits": 4, "group_size": 64, "sym": False, "data_type": "int"},
        iters=options.iters,
        nsamples=len(ids),
        seqlen=LENGTH,
        batch_size=2,
        dataset=torch.utils.data.DataLoader(ids, batch_size=2),  # type: ignore[arg-type]
        device_map="cpu",
        amp=options.precision == "bfloat16",
    )
    return rounded.quantize()[0]


@torch.no_grad()
def alone(model: Any, method: str, ids: Tensor) -> nn.Module:
    """Run the arithmetic of GPTQ or one forward pass without the head."""
    gptq = importlib.import_module("flexround.quant.gptq")
    if method == "pass":
        for batch in ids.split(2):
            model.model(batch)
        return model
    for layer in model.model.layers:
        inputs = {size: torch.randn(1, 2 * LENGTH, size) for size in layer.mlp.up_proj.weight.shape}
        for readers in (["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]):
            weights = [module.weight for name, module in layer.named_modules() if name.split(".")[-1] in readers]
            moments = gptq.second_moments(inputs[weights[0].shape[1]] for _ in ids.split(2))
            for weight in weights:
                step = weight.abs().amax().double().expand(1, 1, 1) / 8
                gptq.eliminated(weight[None].double(), moments, step, -8 + 0 * step, 7 + 0 * step, 0.01, False)
    return model


def spent() -> float:
    """Return the CPU seconds of this process and of those that it waited for, such as compilers."""
    return sum(getattr(os.times(), key) for key in ("user", "system", "children_user", "children_system"))


def child(options: argparse.Namespace) -> dict[str, float]:
    """Measure one method in this process."""
    torch.set_num_threads(1)
    model, tokenizer = load(options.model, options.layers)
    calibration, held = rows(tokenizer, options.text, options.samples)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    cpu, wall = spent(), time.perf_counter()
    if options.child == "auto-round":
        made = theirs(model, calibration, tokenizer, options)
    elif options.child in ("arithmetic", "pass"):
        made = alone(model, options.child, calibration)
    else:
        made = ours(model, options.child, calibration, options)
    cpu, wall = spent() - cpu, time.perf_counter() - wall
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    return {"cpu": cpu, "wall": wall, "peak": peak, "perplexity": perplexity(options.model, made, held)}


def measured(python: str, method: str) -> dict[str, float]:
    """Run this file in a process of its own; return its figures."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [python, __file__, *sys.argv[1:], "--child", method]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a line for each method: median CPU seconds, seconds, peak in MB, perplexity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--auto-round-python", help="without it ours alone are measured")
    parser.add_argument("--methods", nargs="+", default=["signround", "flexround", "gptq"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--iters", type=int, default=50)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--fused", action="store_true", help="ours compile the fake quantization, as auto-round does")
    parser.add_argument("--inplace", action="store_true", help="ours change the model itself, as auto-round does")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options)))
        return
    methods = [*options.methods, *(["auto-round"] if options.auto_round_python else [])]
    found: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for _ in range(options.repeats):
        for method in methods:
            python = options.auto_round_python if method == "auto-round" else sys.executable
            found[method].append(measured(python, method))
            print(method, found[method][-1], file=sys.stderr)
    for method, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(method, " ".join(f"{key} {value:.2f}" for key, value in middle.items()))


if __name__ == "__main__":
    main()
