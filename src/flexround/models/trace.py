"""Run a network's own code: up to one module, to see its arguments, or to its end, to record operations and calls.

A trace has the values that each operation reads and writes. Traces find the convolution before a batch norm and the
activation after a module, whatever the names of their classes and the order of registration.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from flexround.models.tensors import tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments
# Elementwise operations that PyTorch does not tag; batch norms are traced in evaluation mode.
ELEMENTWISE = {"aten::hardswish", "aten::hardswish_", "aten::_prelu_kernel", "aten::native_batch_norm"}


class Reached(Exception):
    """Raised when the awaited module is called, to end the run."""


@contextlib.contextmanager
def standing_in(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's ``forward`` inside."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def reached(module: nn.Module, run: Callable[[], Any], replaced: Mapping[nn.Module, Callable[..., Any]]) -> Call:
    """Return the positional and named arguments with which ``run()`` calls ``module``; the run ends there.

    The module's other hooks, such as its input's quantizer, don't run. ``replaced`` maps modules to functions that
    replace their ``forward``. IndexError: the module is not called.
    """
    caught: list[Call] = []

    def catch(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        caught.append((arguments, keywords))
        raise Reached

    with contextlib.ExitStack() as undo:
        for other, forward in replaced.items():
            undo.enter_context(standing_in(other, forward))
        undo.enter_context(module.register_forward_pre_hook(catch, prepend=True, with_kwargs=True))
        with contextlib.suppress(Reached):
            run()
    return caught[0]


def first_argument(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the first argument of a call, which some transformers models pass by name; None without arguments."""
    return arguments[0] if arguments else next(iter(keywords.values()), None)


def with_first(arguments: tuple[Any, ...], keywords: Mapping[str, Any], value: Any) -> Call:
    """Return the arguments of a call with ``value`` as the first argument."""
    if arguments:
        return (value, *arguments[1:]), dict(keywords)
    return (), {**keywords, next(iter(keywords)): value}


def first_output(output: Any) -> Any:
    """Return the first element of an output that is a tuple or a mapping (as in transformers), else the output."""
    if isinstance(output, Mapping):
        return next(iter(output.values()), None)
    return output[0] if isinstance(output, tuple) and output else output


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor that depends on the network's input, until an operation writes on it."""

    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A recorded operation.

    Attributes:
        function: the operator.
        given: positional and named arguments, with a ``Value`` instead of each input-dependent tensor.
        reads, writes: numbers of values.
        elementwise: whether each element written depends only on the same elements read.
        inside: the innermost watched module that runs the operation.
    """

    function: Any
    given: Any
    reads: frozenset[int]
    writes: tuple[int, ...]
    elementwise: bool
    inside: nn.Module | None


@dataclasses.dataclass(frozen=True)
class ModuleCall:
    """A call of a watched module: its arguments, and the values of its first argument and first output."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    reads: int | None
    writes: int | None


class Trace(TorchDispatchMode):
    """Records the forward pass that runs inside.

    Attributes:
        operations: operations that depend on the input, in order.
        calls: calls of watched modules, in the order of their returns.
        returned: numbers of the values that the network returns.
        weights: numbers of the weights that count as values from the start, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.calls: list[ModuleCall] = []
        self.returned: set[int] = set()
        self.weights: list[int] = []
        self.inside: list[nn.Module] = []
        self._numbers: dict[int, int] = {}  # a tensor's number by its identity
        self._alive: list[Tensor] = []  # so that identities stay unique

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation; record it if it reads a value."""
        read: list[Tensor] = []
        given = tree_map_only(Tensor, lambda tensor: self._placed(tensor, read), (arguments, keywords or {}))
        reads = frozenset(value for tensor in read if (value := self.value(tensor)) is not None)
        made = function(*arguments, **(keywords or {}))
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        if reads and tensors:
            tagged = torch.Tag.pointwise in function.tags or function._schema.name in ELEMENTWISE
            elementwise = tagged and all(tensor.shape == tensors[0].shape for tensor in read)
            writes = tuple(self.number(tensor) for tensor in tensors)
            inside = self.inside[-1] if self.inside else None
            self.operations.append(Operation(function, given, reads, writes, elementwise, inside))
        return made

    def number(self, tensor: Tensor) -> int:
        """Register a tensor, any shape, as a new value; return its number."""
        self._alive.append(tensor)
        self._numbers[id(tensor)] = len(self._alive)
        return len(self._alive)

    def value(self, tensor: Any) -> int | None:
        """Return the number of a tensor's value, or None."""
        return self._numbers.get(id(tensor)) if isinstance(tensor, Tensor) else None

    @property
    def reads_weights(self) -> bool:
        """Whether an operation reads one of the ``weights``."""
        return any(not operation.reads.isdisjoint(self.weights) for operation in self.operations)

    def forget(self) -> None:
        """Free the tensors of the pass, after the last look-up of their numbers."""
        self._alive.clear()
        self._numbers.clear()

    def _placed(self, tensor: Tensor, read: list[Tensor]) -> Any:
        number = self.value(tensor)
        if number is None:
            return tensor
        read.append(tensor)
        return Value(number)

    def roots(self, value: int, known: int) -> set[int]:
        """Return the numbers of the input and weights from which a value is computed, other than through ``known``."""
        makers = {number: operation for operation in self.operations for number in operation.writes}
        waiting, seen, found = [value], {known}, set[int]()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                waiting += makers[number].reads if number in makers else []
                found |= set() if number in makers else {number}
        return found

    def elementwise_after(self, value: int) -> Callable[[Tensor], Tensor] | None:
        """Return the elementwise function that the network applies to a value before any other use.

        This is the longest part of the pass that reads no other value and whose inner values nothing else reads. It may
        be an activation such as ReLU6, as one or several operations, or a scale.

        Returns:
            A differentiable function of (N, ...) that keeps the shape; None if the pass has no such part.
        """
        inner, chosen, found = {value}, list[Operation](), 0
        for operation in self.operations:
            if operation.elementwise and operation.reads <= inner:
                chosen.append(operation)
                if not inner & self.returned and all(
                    other in chosen for other in self.operations if other.reads & inner
                ):
                    found = len(chosen)
                inner.add(operation.writes[0])
        return functools.partial(_run, value, chosen[:found]) if found else None


def _run(value: int, operations: Sequence[Operation], x: Tensor) -> Tensor:
    """Repeat operations with ``x`` (N, ...) as value number ``value``; return the last operation's output."""
    known = {value: x}
    for operation in operations:
        arguments, keywords = tree_map_only(Value, lambda placed: known[placed.number], operation.given)
        if operation.function._schema.is_mutable:  # a gradient may need the overwritten tensor
            arguments = (arguments[0].clone(), *arguments[1:])
        made = operation.function(*arguments, **keywords)
        known[operation.writes[0]] = x = made[0] if isinstance(made, tuple) else made
    return x


@torch.no_grad()
def traced(model: nn.Module, x: Tensor, watched: Container[nn.Module], weights: Iterable[Tensor] = ()) -> Trace:
    """Run a model in evaluation mode on ``x`` (N, ...); return its operations and the calls of watched modules.

    Operations on ``weights`` alone also count as part of the pass.
    """
    trace, reads = Trace(), list[int | None]()

    def enter(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        trace.inside.append(module)
        reads.append(trace.value(first_argument(arguments, keywords)))

    def leave(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        trace.inside.pop()
        trace.calls.append(ModuleCall(module, arguments, keywords, reads.pop(), trace.value(first_output(output))))

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if module in watched:
                hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(leave, with_kwargs=True))
        with trace:
            trace.number(x)
            trace.weights = [trace.number(tensor) for tensor in weights]
            output = model(x)
    trace.returned = {value for leaf in tensors(output) if (value := trace.value(leaf)) is not None}
    trace.forget()
    return trace
