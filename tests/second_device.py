"""A device written in Python: it computes on the CPU, refuses to mix with the CPU's tensors, and counts what crosses.

A tensor of the device is a wrapper whose values lie in a tensor of the CPU. ``counts`` has the ``operations``, the
copies ``to device`` and ``to host``, and the ``reads`` of a number by the host, each of which would make a GPU wait.
"""

import collections
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "second"
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
CROSSES = ("to device", "to host", "reads")
READS = ("_local_scalar_dense", "nonzero", "equal")
FACTORIES = ("empty.memory_format", "empty_strided", "_to_copy", "arange", "arange.start", "arange.start_step")
OWN = ("silu_backward",)  # CPUs and GPUs have a kernel of it; for other devices it is made of several operations
counts: collections.Counter[str] = collections.Counter()


class OnDevice(torch.Tensor):
    """A tensor of the device; ``raw`` holds its values on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "OnDevice":
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, raw.size(), device=f"{NAME}:0", **layout)
        made.raw = raw
        return made

    def __repr__(self, *_: object, **__: object) -> str:
        return f"OnDevice({self.raw})"

    def tolist(self) -> Any:
        counts["reads"] += 1
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        ours = [isinstance(x, cls) for x in given]
        if function not in MOVES and (wrong := [x for x in given if x.dim() and not isinstance(x, cls)]):
            raise RuntimeError(f"{function}: a CPU tensor of shape {tuple(wrong[0].shape)} among those of the device")
        counts["operations"] += 1
        counts["reads"] += function.__name__.split(".")[0] in READS
        plain = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        if plain.get("device") is not None:
            plain["device"] = "cpu"
        out = function(*pytree.tree_map(_bare, args), **pytree.tree_map(_bare, plain))
        if function is aten.copy_.default:
            counts["to device" if ours[0] else "to host"] += ours[0] != ours[1]
            return args[0]
        if function is aten._to_copy.default and torch.device(kwargs.get("device") or NAME).type == "cpu":
            counts["to host"] += 1
            return out
        wrapped = pytree.tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, out)
        return return_and_correct_aliasing(function, args, kwargs, wrapped)


class Generator(torch.Generator):
    """A generator of the CPU that says that it is the device's, and draws the same numbers."""

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)


def _bare(x: Any) -> Any:
    return x.raw if isinstance(x, OnDevice) else x


def _factory(name: str) -> Callable[..., OnDevice]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(aten, packet), overload or "default")

    def made(*args: Any, **kwargs: Any) -> OnDevice:
        counts["to device"] += packet == "_to_copy"
        plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
        return OnDevice(operation(*args, **plain, device="cpu"))

    return made


def install() -> torch.device:
    """Give this process the device, for ever: call it in a fork. Parameters that move stay the same objects."""
    module = _DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    _setup_privateuseone_for_python_backend(NAME, module)
    install.libraries = (
        torch.library.Library("aten", "IMPL"),
        torch.library.Library("_", "IMPL"),
    )  # as long as they live
    for name in FACTORIES:
        install.libraries[0].impl(name, _factory(name), "PrivateUse1")
    for name in OWN:
        install.libraries[0].impl(name, getattr(aten, name), "PrivateUse1")
    install.libraries[1].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    torch.__future__.set_swap_module_params_on_conversion(True)
    return torch.device(NAME, 0)
