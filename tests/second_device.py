"""A device written in Python: it computes on the CPU, refuses to mix with the CPU's tensors and counts what crosses.

Its tensors are wrappers whose values lie in a CPU tensor. An operation between them and a CPU tensor of more than a
single number is an error, as on a GPU. ``counts`` has the copies each way and the numbers that the host read, each of
which makes a GPU wait.
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
READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item")
counts: collections.Counter[str] = collections.Counter()


class Module(_DummyBackendModule):
    """What PyTorch asks of ``torch.second``."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: object = None) -> None:
        counts["waits"] += 1


class OnDevice(torch.Tensor):
    """A tensor of the device; ``raw`` holds its values on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=f"{NAME}:0", requires_grad=False,
        )  # fmt: skip
        made.raw = raw
        return made

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory of the values, by which tensors that share it are known."""
        return self.raw.untyped_storage()

    def tolist(self) -> Any:
        counts["reads"] += 1
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def __repr__(self, *_: object, **__: object) -> str:
        return f"OnDevice({self.raw})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        ours = [isinstance(x, cls) for x in given]
        if function not in MOVES and any(x.dim() and not here for x, here in zip(given, ours, strict=True)):
            shapes = [tuple(x.shape) for x, here in zip(given, ours, strict=True) if not here]
            raise RuntimeError(f"{function}: tensors of the CPU, {shapes}, among those of the device")
        name = function.__name__.split(".")[0]
        if name in READS:
            counts["reads"] += 1
        counts["operations"] += 1
        target = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        plain = {key: value for key, value in kwargs.items() if key not in ("pin_memory",)}
        if target:
            plain["device"] = "cpu"
        if function is aten.copy_.default:
            counts["to device" if ours[0] and not ours[1] else "to host" if ours[1] and not ours[0] else "copies"] += 1
        out = function(*pytree.tree_map(_bare, args), **pytree.tree_map(_bare, plain))
        if function is aten._to_copy.default and target == "cpu":
            counts["to host"] += 1
            return out.clone() if out is args[0].raw else out
        wrapped = pytree.tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, out)
        if not any(ours) or (function is aten.copy_.default and not ours[0]):
            return args[0] if function is aten.copy_.default else wrapped
        return return_and_correct_aliasing(function, args, kwargs, wrapped)


def _bare(x: Any) -> Any:
    return x.raw if isinstance(x, OnDevice) else x


def _factory(operation: Any) -> Callable[..., OnDevice]:
    def made(*args: Any, **kwargs: Any) -> OnDevice:
        if operation is aten._to_copy.default:
            counts["to device"] += 1
        plain = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
        return OnDevice(operation(*args, **plain, device="cpu"))

    return made


class Generator(torch.Generator):
    """A CPU generator that says that it is the device's."""

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)


def install() -> torch.device:
    """Register the device, once in a process, and return it."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, Module())
        library = torch.library.Library("aten", "IMPL")
        for name in (
            "empty.memory_format", "empty_strided.default", "_to_copy.default", "arange.default", "arange.start", "arange.start_step"
        ):
            packet, overload = name.split(".")
            operation = getattr(getattr(aten, packet), overload)
            library.impl(packet if overload == "default" else name, _factory(operation), "PrivateUse1")
        install.library = library
    torch.__future__.set_swap_module_params_on_conversion(True)
    return torch.device(NAME, 0)


def of_state(state: torch.Tensor) -> Generator:
    """Return a generator of the device in the state of one of the CPU."""
    made = Generator()
    made.set_state(state)
    return made
