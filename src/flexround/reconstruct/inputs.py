"""What the layers of a block multiply their weights with: for roundings that look before they learn."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.reconstruct.cache import on
from flexround.reconstruct.reconstruction import Reconstruction


class _Reached(Exception):
    """The layer has got its input: the rest of the block need not run."""


def layer_inputs(job: Reconstruction, block: Block, layer: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """Yield the inputs of a layer, batch by batch, while the block is as it is; none if the block doesn't call it.

    Args:
        job: settings; its mask, bool (N, T), says which tokens count if ``mask_padding`` is set.
        block: which calls the layer once at most.
        layer: linear, ``Conv1D`` or convolution.
        x: (N, ...) cached input of the block.

    Yields:
        float32 (groups, n, features): output channels of a group are sums over the features, which lie as the weight's
        other axes do; groups is 1 but for grouped convolutions.
    """
    for start in range(0, len(x), job.hyper.batch):
        rows = slice(start, start + job.hyper.batch)
        mask = None if job.mask is None else job.mask[rows].to(job.device)
        seen = _input(job, block, layer, on(job.device, x[rows]), mask)
        if seen is None:
            return
        inputs = unfolded(layer, seen.float())
        if mask is not None and job.hyper.mask_padding and mask.numel() == inputs.shape[1]:
            inputs = inputs[:, mask.flatten()]
        yield inputs


@torch.no_grad()
def called(job: Reconstruction, block: Block, x: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """Return the layers of a block in the order of their calls, each with its input, for the first row of ``x``.

    Layers that read one tensor have the same object.

    Args:
        job: settings.
        block: on the job's device.
        x: (N, ...) cached input of the block.
    """
    calls: list[tuple[nn.Module, Tensor]] = []

    def look(layer: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        calls.append((layer, next(iter([*arguments, *keywords.values()]))))

    with contextlib.ExitStack() as hooks:
        for layer in attach.weight_layers(block):
            hooks.enter_context(layer.register_forward_pre_hook(look, with_kwargs=True))
        with job.products():
            block(on(job.device, x[:1]), None if job.mask is None else job.mask[:1].to(job.device))
    return calls


@torch.no_grad()
def _input(job: Reconstruction, block: Block, layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """Run a block on rows (n, ...) and their mask until it calls a layer; return what that is given, or None."""
    seen: list[Tensor] = []

    def look(_: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        seen.extend([*arguments, *keywords.values()][:1])
        raise _Reached

    with layer.register_forward_pre_hook(look, with_kwargs=True), job.products(), contextlib.suppress(_Reached):
        block(x, mask)
    return seen[0] if seen else None


def unfolded(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the input of a layer as (groups, rows, features), of its type.

    Args:
        layer: linear or ``Conv1D``, whose input is (..., features), or a convolution, whose input is (n, C, h, w).
        x: that input. A row is a token, or a place of a convolution's output.
    """
    if not isinstance(layer, nn.Conv2d):
        return x.reshape(1, -1, x.shape[-1])
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = nn.functional.pad(x, layer._reversed_padding_repeated_twice, mode)
    columns = nn.functional.unfold(x, layer.kernel_size, layer.dilation, stride=layer.stride)
    per_group = columns.unflatten(1, (layer.groups, -1))  # (n, groups, features, places)
    return per_group.permute(1, 0, 3, 2).flatten(1, 2)
