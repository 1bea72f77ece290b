"""Is a result the same to the last bit? A small reconstruction again and again, one thing changed each time.

    python bench/determinism.py

Figures in docs/determinism.md. Each case is a process of its own; a ResNet-18 on random images (Q, W4A4) and a small
LLaMA on random tokens (B, W4), FlexRound, 60 iterations. What is compared is what is stored: codes and steps.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torchvision
import transformers
from torch import Tensor, nn

import flexround

CASES: dict[str, Mapping[str, str]] = {
    "again": {},
    "another hash seed": {"PYTHONHASHSEED": "7"},
    "another locale": {"LC_ALL": "C", "LANG": "C"},
    "another time zone": {"TZ": "Pacific/Auckland"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "a CPU without AVX-512": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "a CPU without AVX2": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}


def image_network() -> tuple[nn.Module, Tensor, str]:
    """Return a ResNet-18, images and a recipe."""
    return torchvision.models.resnet18(num_classes=10), torch.randn(64, 3, 32, 32), "q-flexround-w4a4"


def language_network() -> tuple[nn.Module, Tensor, str]:
    """Return a LLaMA, token ids and a recipe."""
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.LlamaForCausalLM(config), torch.randint(0, 200, (64, 24)), "b-flexround-w4"


NETWORKS = {"ResNet-18, Q W4A4": image_network, "LLaMA, B W4": language_network}


def child(out: Path) -> None:
    """Quantize each network and store its codes and steps."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    found = {}
    for name, build in NETWORKS.items():
        torch.manual_seed(0)
        model, samples, recipe = build()
        quantized = flexround.quantize(model.eval(), samples, recipe, iters=60, batch=16, progress=False)
        found[name] = {key: (stored.codes, stored.grid.step) for key, stored in quantized.codes().items()}
    torch.save(found, out)


def made(directory: Path, changes: Mapping[str, str]) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Return what a process gives in a directory of its own, with some environment variables changed."""
    directory.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"} | changes
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "found.pt"]
    subprocess.run(command, cwd=directory, env=environment, check=True)
    return torch.load(directory / "found.pt")


def main() -> None:
    """Print how many codes differ and how far the steps do, for each case and network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.child)
    print(
        f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        first = made(Path(scratch) / "first", {})
        for number, (case, changes) in enumerate(CASES.items()):
            other = made(Path(scratch) / str(number), changes)
            for name, layers in first.items():
                pairs = [(*layers[key], *other[name][key]) for key in layers]
                off = sum(int((codes != others).sum()) for codes, _, others, _ in pairs)
                total = sum(codes.numel() for codes, *_ in pairs)
                steps = max(float(((step - one) / step).abs().max()) for _, step, _, one in pairs)
                print(f"{case}; {name}: {off} of {total} codes differ, steps by at most {steps:.1e}", flush=True)


if __name__ == "__main__":
    main()
