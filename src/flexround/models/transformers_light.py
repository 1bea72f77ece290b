"""transformers without its slow import: ``modeling = transformers_light.load("bert")``.

The plain import of a model's module pulls in PyTorch's compiler, distributed tensors, SciPy's optimizers and the image
stack, for functions that no text model calls, and takes longer than torch itself. Here stand-ins take their places
while the import runs; what they were asked for is fetched from the real module when it is first called.
"""

import contextlib
import importlib.util
import logging
import os
import sys
import typing
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from flexround import compiler

log = logging.getLogger(__name__)

_STAND_INS = (
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch.nn.attention.flex_attention",  # sympy
    "scipy.optimize",  # losses of object detectors
    "transformers.image_transforms",
    "transformers.processing_utils",  # torchvision
    "transformers.image_utils",  # torchvision; LLaMA's configuration asks for a type of it, and for one of the next
    "transformers.video_utils",
)
_INDEXED = ("transformers", "transformers.models")


def load(name: str) -> Any:
    """Import ``transformers.models.<name>.modeling_<name>`` and return the module.

    The classes are the library's own. In a process started by a distributed launcher the import is the plain one,
    because after the quick one transformers takes ``torch.distributed`` for unavailable.
    """
    target = f"transformers.models.{name}.modeling_{name}"
    if target in sys.modules or "WORLD_SIZE" in os.environ:
        return importlib.import_module(target)
    present = set(sys.modules)
    compiler.defer()
    try:
        with _stand_ins(), _no_distributed(), _bare_packages():
            return importlib.import_module(target)
    except Exception as error:
        # Another version may use a module in a way that a stand-in can't serve.
        log.info("plain import of %s, because the quick one failed: %s", target, error)
        for half_imported in [key for key in sys.modules if key.startswith("transformers") and key not in present]:
            del sys.modules[half_imported]
        return importlib.import_module(target)


class _StandIn(ModuleType):
    """A module that has every name; each is a class that stands for the real object until it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # A class, because some names serve as types in annotations and isinstance.
        return type(name, (), {"__new__": lambda _, *args, **kwargs: self._real(name)(*args, **kwargs)})

    def _real(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Put stand-ins where the real modules aren't loaded yet; afterwards whoever imports them gets the real ones."""
    modules = {name: _StandIn(name) for name in _STAND_INS if name not in sys.modules}
    if "transformers.processing_utils" in modules:
        vars(modules["transformers.processing_utils"])["Unpack"] = typing.Unpack
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


@contextlib.contextmanager
def _no_distributed() -> Iterator[None]:
    """Let transformers find no ``torch.distributed``; it asks once and remembers the answer."""
    import torch

    real = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available = real


@contextlib.contextmanager
def _bare_packages() -> Iterator[None]:
    """Import submodules of transformers without its index of all models, for which it reads all its source files."""
    bare = [name for name in _INDEXED if name not in sys.modules]
    for name in bare:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        vars(sys.modules[name])["__version__"] = metadata.version("transformers")
    try:
        yield
    finally:
        for name in bare:  # whoever imports them gets the real ones, with the submodules that are loaded by then
            del sys.modules[name]
