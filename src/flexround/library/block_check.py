"""The check of all blocks: run one after the other, they must compute the same as their network."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from flexround.errors import InputError
from flexround.models import structure
from flexround.models.blocks import Block
from flexround.models.tensors import apart
from flexround.models.trace import first_output
from flexround.tasks.protocol import Inputs

TRIED = 2  # samples on which a cut is tried
CLOSE = 1e-4  # allowed difference of blocks and network, relative to the largest output
HINT = "give blocks=, names of modules that run one after the other, or a function that returns flexround.Blocks"


def first_input(x: Tensor) -> Tensor:
    """Return the input of a user's model: token ids (N, T) from ids and types (N, 2, T); images unchanged."""
    return x if x.is_floating_point() else x[:, 0]


@torch.no_grad()
def check(model: nn.Module, blocks: Sequence[Block], inputs: Inputs, device: torch.device) -> None:
    """Compare blocks with the network on two samples: with padding, the samples with least and most padding.

    Args:
        model: in evaluation mode, on ``device``.
        blocks: from the automatic cut, from named modules, or from the user's function.
        inputs: samples, and the mask of their padding.
        device: device of the computation.

    Raises:
        InputError: the blocks compute something else, or can't be blocks (`_differ`).
    """
    rows = [*range(len(inputs.x))][:TRIED]
    if inputs.mask is not None:
        lengths = inputs.mask.sum(1)
        rows = [int(lengths.argmax()), int(lengths.argmin())]
    for count in sorted({1, len(rows)}):  # one row first: several rows may be as many as a row's tokens
        some = rows[:count]
        mask = None if inputs.mask is None else inputs.mask[some].to(device)
        if _differ(model, blocks, inputs.x[some].to(device), mask):
            raise InputError(
                f"{type(model).__name__}: cut into {', '.join(block.name for block in blocks[:6])} it computes "
                f"something else: a block reads more than the output of the one before it; {HINT}"
            )


def _differ(model: nn.Module, blocks: Sequence[Block], x: Tensor, mask: Tensor | None) -> bool:
    """Whether the blocks' output for ``x`` (n, ...) differs from both the last module's and the network's output.

    Types of tokens and outputs at padding (``mask`` is bool (n, T)) are ignored. Blocks can't be compared if the
    network doesn't call their last module.

    Raises:
        InputError: the network runs a block's module several times, but only one call would be learned; or a block's
            input or output lacks the samples in its first dimension.
        RuntimeError: the memory is too small.
    """
    if not x.is_floating_point():
        x = torch.stack([x[:, 0], torch.zeros_like(x[:, 0])], 1)
    last, output = _outputs(model, blocks, x, mask)
    if not isinstance(last, Tensor):
        return False
    try:
        found = _chained(model, blocks, x, mask)
    except InputError:
        raise
    except Exception as error:  # of any kind: the model's own code gets an input that it doesn't expect
        structure.refuse_memory(error)
        return True
    real = ... if mask is None or found.shape[:2] != mask.shape else mask
    wanted = [of for of in (last, output) if isinstance(of, Tensor) and of.shape == found.shape]
    return not any(apart(found[real], of[real]) <= CLOSE for of in wanted)


def _outputs(model: nn.Module, blocks: Sequence[Block], x: Tensor, mask: Tensor | None) -> tuple[Any, Any]:
    """Return the first output of the last block's module and of the network for ``x`` (n, ...); None if missing."""
    names, gave = {block.module: block.name for block in blocks}, dict[nn.Module, Any]()

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        if module in gave:
            name = type(model).__name__
            raise InputError(f"{name}: runs its block {names[module]} twice, and one call would be learned; {HINT}")
        kept = module is blocks[-1].module  # copied, because the network may overwrite it
        gave[module] = tree_map_only(Tensor, Tensor.clone, first_output(output)) if kept else None

    output = None
    with contextlib.ExitStack() as hooks:
        for module in names:
            hooks.enter_context(module.register_forward_hook(leave))
        hooks.enter_context(without_cache(model))
        try:
            output = model(first_input(x), **({} if mask is None else structure.known(model, {"attention_mask": mask})))
        except ValueError:
            if not gave:  # transformers' classifiers without padding token fail behind their layers
                raise
    return gave.get(blocks[-1].module), first_output(output)


def _chained(model: nn.Module, blocks: Sequence[Block], x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output for ``x`` (n, ...) of the blocks run one after the other.

    Raises:
        InputError: a block's input or output doesn't have the samples in its first dimension.
    """
    rows = len(x)
    for block in blocks:
        given = block.before(x)
        x = block(given, mask)
        if not len(given) == len(x) == rows:
            raise InputError(
                f"{type(model).__name__}: of {rows} samples its block {block.name} reads {len(given)} rows and gives "
                f"{len(x)}; a block needs the samples in the first dimension; {HINT}"
            )
    return x


@contextlib.contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Disable the cache of keys and values in a model of transformers: replays would extend a part's cached values."""
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    caching = [config for config in configs if getattr(config, "use_cache", False)]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True
