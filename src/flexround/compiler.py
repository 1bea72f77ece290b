"""PyTorch's compiler, imported only when something is compiled.

Every optimizer imports ``torch._dynamo`` at its first step, to mark its functions as not to be compiled: 1.6 s that
each stage would pay for nothing, since nothing here is compiled.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


def defer() -> None:
    """Put a stand-in in the place of ``torch._dynamo``; whoever asks it for more than a mark gets the real module."""
    if NAME not in sys.modules:
        sys.modules[NAME] = _Deferred(NAME)


def _mark(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
    """Stand for the compiler's decorators: outside of a compiled function they change nothing."""
    return _mark if function is None else function


class _Deferred(ModuleType):
    """Knows the marks; at any other name it makes room for the real module."""

    allow_in_graph = assume_constant_result = disable = staticmethod(_mark)

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing, as the real one does outside of a compiled function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # the import of a submodule asks for the path
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
            vars(sys.modules["torch"]).pop("_dynamo", None)
        return getattr(importlib.import_module(NAME), name)
