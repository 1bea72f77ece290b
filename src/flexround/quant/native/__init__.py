"""The formulas of ``quant/functions.py`` for float32 on a CPU, one pass over memory per direction (``kernels.cpp``).

Each function returns the differentiable value of its formula, or None if no kernel handles the inputs.
"""

import contextlib
import functools
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense

from flexround.quant.grid import Bound

log = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("kernels.cpp")
# No contraction, no reassociation: elements equal the plain formulas bit for bit.
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")


@functools.cache
def built() -> bool:
    """Build and load the kernels; return whether this worked. If not, log the reason in one line."""
    try:
        torch.ops.load_library(build())
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
        log.warning("no native kernels (%s): fake quantization is several times slower", reason)
        return False
    return True


def build() -> Path:
    """Return the kernels' library, compiled once per PyTorch version, in the user's cache, else next to Python.

    Raises:
        OSError: no C++ compiler (``CXX``), or no writable directory for the library.
        CalledProcessError: the compiler can't compile the kernels.
    """
    version = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {FLAGS}".encode()).hexdigest()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = (home if _writable(home) else Path(sys.prefix)) / "flexround"
    made = cache / f"kernels-{version[:16]}.so"
    if not made.exists():
        log.info("building the native kernels: %s", made)
        cache.mkdir(parents=True, exist_ok=True)
        torch_files, abi = Path(torch.__file__).parent, int(torch.compiled_with_cxx11_abi())
        headers = [f"-I{torch_files / 'include' / inner}" for inner in ("", "torch/csrc/api/include")]
        libraries = [f"-L{torch_files / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
        with tempfile.TemporaryDirectory(dir=cache) as directory:  # several jobs may build at once
            part = Path(directory, made.name)
            command = [os.environ.get("CXX", "c++"), *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *headers, str(SOURCE)]
            subprocess.run([*command, "-o", str(part), *libraries], check=True, capture_output=True, text=True)
            part.replace(made)
    return made


def _writable(directory: Path) -> bool:
    """Return whether files can be created in a directory; create it if it is missing."""
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    return os.access(directory, os.W_OK)


def fits(*inputs: Tensor) -> bool:
    """Return whether kernels handle the inputs, any shape; never while a compiler traces the plain formulas."""
    alike = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in inputs)
    return alike and not torch.compiler.is_compiling() and built()


def distance(x: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return |x - x̂|, shape of ``x``; there is one step, or one per channel, or one per group of a channel."""
    if fits(x, step) and (is_dense(x) if step.numel() == 1 else x.is_contiguous() and _by_rows(step)):
        return torch.ops.flexround.distance(x, step, _tensor(low), _tensor(high))
    return None


def step_quantize(x: Tensor, step: Tensor, low: float, high: float, kept: Any) -> Tensor | None:
    """Return x̂, shape of ``x``; ``kept`` is an ``activation.Kept`` or None."""
    if fits(x, step):
        return torch.ops.flexround.step_quantize(x, step, low, high, *(kept or (None, 1, 0)))
    return None


def divide_round(
    weight: Tensor,
    start: Tensor,
    d1: Tensor,
    d2: Tensor | None,
    d3: Tensor | None,
    d4: Tensor | None,
    low: Bound,
    high: Bound,
) -> Tensor | None:
    """Return Ŵ, shape of ``weight``; s1 and s3 have one number, or one per output channel, or one per group of it."""
    if fits(weight, d1) and _by_rows(start, d3):
        return torch.ops.flexround.divide_round(weight, start, d1, d2, d3, d4, _tensor(low), _tensor(high))
    return None


def add_round(weight: Tensor, v: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return Ŵ, shape of ``weight`` and ``v``; s has one number, or one per output channel, or one per group of it."""
    if fits(weight, v) and _by_rows(step):
        return torch.ops.flexround.add_round(weight, v, step, _tensor(low), _tensor(high))
    return None


def sigmoid_round(alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return Ŵ, shape of ``alpha``; s1 has one number, or one per output channel, or one per group of it."""
    if fits(alpha, step) and _by_rows(step):
        return torch.ops.flexround.sigmoid_round(alpha, floor, step, _tensor(low), _tensor(high))
    return None


def rounding_regularizer(alpha: Tensor, beta: float) -> Tensor | None:
    """Return the regularizer's sum over all weights, shape ()."""
    return torch.ops.flexround.rounding_regularizer(alpha, beta) if fits(alpha) else None


def _tensor(bound: Bound) -> Tensor:
    return bound if isinstance(bound, Tensor) else torch.tensor(bound, dtype=torch.float32)


def _by_rows(step: Tensor, other: Tensor | None = None) -> bool:
    """Return whether a step and another tensor have one number, or one per channel, or one per group of a channel."""
    rows = 2 if step.ndim > 2 and step.shape[1] > 1 else 1
    return all(x is None or x.numel() in (1, x.shape[:rows].numel()) for x in (step, other))
