"""How numbers are computed: a GPU's bits are the same each time, its float32 is no TF32; a CPU's are not denormal."""

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
    """Have a GPU compute the same bits each time, and float32 as float32; call it before anything is computed.

    An operation without a deterministic form raises, see ``repeated``. With warnings in the place of errors the
    backward passes of fused attention would not be deterministic either.
    """
    os.environ.setdefault(WORKSPACE, ":4096:8")  # read by cuBLAS at its first product
    torch.use_deterministic_algorithms(True, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs, and hides nothing
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def repeated(work: Callable[[], Result], again: bool = True) -> Result:
    """Return what ``work`` returns, which is done again if an operation in it has no deterministic form.

    Such operations are allowed from then on.

    Raises:
        InputError: there is such an operation, and the work can't be done ``again``: it changes what it starts from.
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
                "torch.use_deterministic_algorithms(True, warn_only=True) and load it anew, or leave inplace out"
            ) from error
        log.warning("%s; done again without: last bits may be others each time", told)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return work()  # here, where the error no longer holds what the first attempt had on the GPU


def autocast(kind: torch.dtype, device: torch.device) -> torch.autocast:
    """Return the context in which products have factors of type ``kind``; softmax, norms and sums stay float32.

    Nothing is kept of the parameters in that type: only the outermost autocast, which may be ``neutral``'s, forgets it,
    and what is learned would keep its first values.
    """
    return torch.autocast(device.type, kind, enabled=kind != torch.float32, cache_enabled=False)


@contextlib.contextmanager
def without_denormals() -> Iterator[None]:
    """Have a CPU take numbers below 1e-38 for 0 inside, and threads that begin inside for ever.

    Adam's averages become such numbers where the gradient stays 0, as that of a weight that AdaRound has decided, and
    an operation on one takes a CPU 15 times as long. See bench/RESULTS.md.
    """
    before = not (torch.tensor(1e-39, dtype=torch.float32, device="cpu") * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def neutral() -> Iterator[contextlib.ExitStack]:
    """Compute inside as a job does: gradients on, no autocast, float32 by default, whatever the caller set.

    What `repeatable` and `repeated` set inside is again as it was afterwards, but for cuBLAS's workspace.
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
    """Return the context in which a network's code makes tensors on ``device``, if the caller has set a default one."""
    return contextlib.nullcontext() if torch.get_default_device().type == "cpu" else device


@contextlib.contextmanager
def tensor_float(allowed: bool) -> Iterator[None]:
    """Let GPUs round the factors of float32 products to TF32 inside, if it is ``allowed``."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    if allowed:
        products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def facts() -> dict[str, Any]:
    """Return what decides the last bits of a GPU's results, for the record."""
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    strict = torch.are_deterministic_algorithms_enabled() and not warned
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "deterministic": strict and torch.backends.cudnn.deterministic,
        "cublas_workspace": os.environ.get(WORKSPACE),
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
    }
