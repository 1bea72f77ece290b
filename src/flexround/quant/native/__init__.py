"""The formulas of ``quant/functions.py`` for float32 on a CPU, one pass over memory each way (``kernels.cpp``).

Each function returns the value of its formula, differentiable, or None if there is no kernel for the inputs.
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
# Nothing is contracted or reassociated: elements have the bits of the plain formulas.
FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")


@functools.cache
def built() -> bool:
    """Say whether the kernels can be used, after building and loading them; if not, log why in one line."""
    try:
        torch.ops.load_library(build())
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
        log.warning("no native kernels (%s): fake quantization is several times slower", reason)
        return False
    return True


def build() -> Path:
    """Return the library of the kernels, compiled once for each PyTorch, in the user's cache, else beside Python.

    Raises:
        OSError: no C++ compiler (``CXX``), or no place for it.
        CalledProcessError: it can't compile the kernels.
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
    """Say whether files can be made in a directory, which may be missing."""
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    return os.access(directory, os.W_OK)


def fits(*inputs: Tensor) -> bool:
    """Say whether all, of any shape, are of the type and device of the kernels; compilers trace the plain formulas."""
    alike = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in inputs)
    return alike and not torch.compiler.is_compiling() and built()


def distance(x: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return |x - x̂|, shape of ``x``; of several steps each is for a channel, or for each of its groups."""
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
    """Return Ŵ, shape of ``weight``; s1 and s3 have a number for each output channel, or for each of its groups."""
    if fits(weight, d1) and _by_rows(start, d3):
        return torch.ops.flexround.divide_round(weight, start, d1, d2, d3, d4, _tensor(low), _tensor(high))
    return None


def add_round(weight: Tensor, v: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return Ŵ, shape of ``weight`` and ``v``; s has a number for each output channel, or for each of its groups."""
    if fits(weight, v) and _by_rows(step):
        return torch.ops.flexround.add_round(weight, v, step, _tensor(low), _tensor(high))
    return None


def sigmoid_round(alpha: Tensor, floor: Tensor, step: Tensor, low: Bound, high: Bound) -> Tensor | None:
    """Return Ŵ, shape of ``alpha``; s1 has a number for each output channel, or for each of its groups."""
    if fits(alpha, step) and _by_rows(step):
        return torch.ops.flexround.sigmoid_round(alpha, floor, step, _tensor(low), _tensor(high))
    return None


def rounding_regularizer(alpha: Tensor, beta: float) -> Tensor | None:
    """Return the sum, shape ()."""
    return torch.ops.flexround.rounding_regularizer(alpha, beta) if fits(alpha) else None


def _tensor(bound: Bound) -> Tensor:
    return bound if isinstance(bound, Tensor) else torch.tensor(bound, dtype=torch.float32)


def _by_rows(step: Tensor, other: Tensor | None = None) -> bool:
    """Say whether a step and another tensor have one number, or one for each channel, or for each of its groups."""
    rows = 2 if step.ndim > 2 and step.shape[1] > 1 else 1
    return all(x is None or x.numel() in (1, x.shape[:rows].numel()) for x in (step, other))
