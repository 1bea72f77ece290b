"""torchvision without its slow import: ``from flexround.models.torchvision_light import torchvision``.

Importing torchvision makes ``torchvision.ops.roi_align`` import one predicate from ``torch._dynamo.utils``, which pulls
in the whole compiler: about 1.5 s for a function that no classifier calls. Stages start often, so the import is made
with a stand-in that fetches the real predicate when it is first called.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

_SLOW = "torch._dynamo.utils"


def _is_compile_supported(device_type: object) -> bool:
    """Whether the compiler supports a device type, by the real predicate."""
    return importlib.import_module(_SLOW).is_compile_supported(device_type)


@contextlib.contextmanager
def _stand_in() -> Iterator[None]:
    """Let ``from torch._dynamo.utils import is_compile_supported`` succeed without importing that module."""
    if _SLOW in sys.modules:
        yield
        return
    module = ModuleType(_SLOW)
    module.is_compile_supported = _is_compile_supported  # type: ignore[attr-defined]
    sys.modules[_SLOW] = module
    try:
        yield
    finally:
        # Whoever imports the compiler later must get the real module.
        del sys.modules[_SLOW]


with _stand_in():
    import torchvision

__all__ = ["torchvision"]
