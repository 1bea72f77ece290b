"""Numerical modes: repeatable bits and float32 without TF32 on a GPU, no denormal numbers on a CPU."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from flexround.errors import InputError

log = logging.getLogger(__name__)
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
Result = TypeVar("Result")
UNREPEATABLE = "does not have a deterministic implementation"  # PyTorch's words


def repeatable() -> None:
    """Make a GPU compute the same bits each time, and float32 without TF32; call it before any computation.

    An operation without a deterministic form raises, see ``repeated``. With warnings instead of errors, backward
    passes of fused attention would not be deterministic either.
    """
    os.environ.setdefault(WORKSPACE, ":4096:8")  # cuBLAS reads this at its first product
    torch.use_deterministic_algorithms(True, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs, and hides nothing
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def repeated(work: Callable[[], Result], again: bool = True) -> Result:
    """Return the result of ``work``, which is repeated if one of its operations has no deterministic form.

    Nondeterministic operations are allowed from then on.

    Raises:
        InputError: the work has such an operation and can't be done ``again``, because it changes its own inputs.
    """
    try:
        return work()
    except Exception as error:
        told = next((text for text in (str(error), str(error.__cause__)) if UNREPEATABLE in text), None)
        if told is None or torch.is_deterministic_algorithms_warn_only_enabled():
            raise
        told = told.partition(UNREPEATABLE)[0] + UNREPEATABLE
        if not again:
            raise InputError(
                f"inplace: {told}, and a changed network can't start again; call "
                "torch.use_deterministic_algorithms(True, warn_only=True) and load it again, or leave inplace out"
            ) from error
        log.warning("%s; done again without: last bits may be others each time", told)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return work()  # outside `except`: the error would keep the first attempt's tensors on the GPU


def autocast(kind: torch.dtype, device: torch.device) -> torch.autocast:
    """Return the context in which factors of products have type ``kind``; softmax, norms and sums stay float32.

    Casts of parameters are not cached: only the outermost autocast, perhaps ``neutral``'s, clears the cache, so that
    learned parameters would keep their first values.
    """
    return torch.autocast(device.type, kind, enabled=kind != torch.float32, cache_enabled=False)


@contextlib.contextmanager
def without_denormals() -> Iterator[None]:
    """Make a CPU treat numbers below 1e-38 as 0 inside; threads that start inside keep doing so afterwards.

    Where gradients stay 0, as for weights that AdaRound has decided, Adam's averages become denormal. A CPU needs 15
    times as long for an operation on such a number. See bench/RESULTS.md.
    """
    before = not (torch.tensor(1e-39, dtype=torch.float32, device="cpu") * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def neutral() -> Iterator[contextlib.ExitStack]:
    """Ignore the caller's modes inside and compute as a job does: gradients on, no autocast, float32 by default.

    Afterwards the settings of `repeatable` and `repeated` are restored, except cuBLAS's workspace.
    """
    before, cudnn, debug = torch.get_default_dtype(), torch.backends.cudnn, torch.get_deterministic_debug_mode()
    flags = cudnn.benchmark, cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_default_dtype(torch.float32)
    try:
        with contextlib.ExitStack() as stack:
            for context in (torch.inference_mode(False), torch.enable_grad(), without_denormals(), tensor_float(False)):
                stack.enter_context(context)
            for kind in ("cpu", "cuda"):
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield stack
    finally:
        torch.set_default_dtype(before)
        torch.set_deterministic_debug_mode(debug)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        cudnn.benchmark, cudnn.deterministic = flags


def default(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which code creates tensors on ``device``, if the caller has set a default device."""
    return contextlib.nullcontext() if torch.get_default_device().type == "cpu" else device


@contextlib.contextmanager
def tensor_float(allowed: bool) -> Iterator[None]:
    """If ``allowed``, let GPUs round the factors of float32 products to TF32 inside."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    if allowed:
        products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def facts() -> dict[str, Any]:
    """Return the settings that decide the last bits of a GPU's results, for the record."""
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    strict = torch.are_deterministic_algorithms_enabled() and not warned
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "deterministic": strict and torch.backends.cudnn.deterministic,
        "cublas_workspace": os.environ.get(WORKSPACE),
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
    }
