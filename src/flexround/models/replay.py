"""Run a network's own code up to one of its modules, to see what that module is called with."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

Call = tuple[tuple[Any, ...], dict[str, Any]]  # its positional and its named arguments


class Reached(Exception):
    """The module that was waited for is called."""


@contextlib.contextmanager
def standing_in(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Have ``forward`` run in the place of a module's own."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def reached(module: nn.Module, run: Callable[[], Any], replaced: Mapping[nn.Module, Callable[..., Any]]) -> Call:
    """Return the positional and named arguments with which ``run()`` calls ``module``, where the run ends.

    The module's other hooks, such as the quantizer of its input, don't run. ``replaced`` are modules, and what runs in
    the place of their ``forward``. IndexError: the module is not called.
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
    """Return the first argument of a call, which some models of transformers pass by name; None if there is none."""
    return arguments[0] if arguments else next(iter(keywords.values()), None)


def with_first(arguments: tuple[Any, ...], keywords: Mapping[str, Any], value: Any) -> Call:
    """Return the arguments of a call with another first one."""
    if arguments:
        return (value, *arguments[1:]), dict(keywords)
    return (), {**keywords, next(iter(keywords)): value}


def first_output(output: Any) -> Any:
    """Return the first of an output that may be a tuple or an output of transformers, which is a mapping."""
    if isinstance(output, Mapping):
        return next(iter(output.values()), None)
    return output[0] if isinstance(output, tuple) and output else output
