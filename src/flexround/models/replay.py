"""Run a network's own code up to one of its modules, to see what that module is called with."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn


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


@contextlib.contextmanager
def reaching(module: nn.Module) -> Iterator[list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """End the run inside when it calls ``module``; the list then has the arguments of that call.

    The module's other hooks, such as the quantizer of its input, don't run.
    """
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def catch(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        caught.append((arguments, keywords))
        raise Reached

    handle = module.register_forward_pre_hook(catch, prepend=True, with_kwargs=True)
    with contextlib.suppress(Reached):
        try:
            yield caught
        finally:
            handle.remove()


def first_argument(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the first argument of a call, which some models of transformers pass by name; None if there is none."""
    return arguments[0] if arguments else next(iter(keywords.values()), None)


def with_first(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with another first one."""
    if arguments:
        return (value, *arguments[1:]), dict(keywords)
    return (), {**keywords, next(iter(keywords)): value}


def first_output(output: Any) -> Any:
    """Return the first of an output that may be a tuple or an output of transformers, which is a mapping."""
    if isinstance(output, Mapping):
        return next(iter(output.values()), None)
    return output[0] if isinstance(output, tuple) and output else output
