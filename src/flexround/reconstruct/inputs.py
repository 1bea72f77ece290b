"""The inputs of a block's layers, for roundings that need them and to find the network's first and last layer."""

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flexround.models.blocks import Block, Site
from flexround.models.surgery import attach
from flexround.models.tensors import unchanged
from flexround.models.trace import Call, Reached, first_argument, with_first
from flexround.reconstruct.cache import on, slices
from flexround.reconstruct.reconstruction import End, Reconstruction


def ends(job: Reconstruction, index: int, x: Tensor) -> dict[nn.Module | Site, End]:
    """Return the network's first and last layer, and the sites of the first's output and the last's input.

    These may have special bits. Blocks quantize outputs, or inputs of layers; the first layer's output is then the
    second layer's input. Among output sites it is the last before the next layer's call. Only layers and sites of the
    block ``index`` are examined, with input ``x`` (N, ...).
    """
    blocks, block, last = job.blocks, job.blocks[index], len(job.blocks) - 1
    found: dict[nn.Module | Site, End] = {}
    if index == last - 1 and len(attach.weight_layers(blocks[last])) == 1:
        found |= dict.fromkeys((site for site in block.sites[-1:] if site.where == "output"), "head")
    outputs = {site: 0 for site in block.sites if site.where == "output"}  # number of layer calls before each site
    calls = called(job, block, x, slice(1), outputs=outputs) if index in (0, 1, last) else []
    stem = head = None
    if calls and index == last:
        found |= dict.fromkeys([site for site in outputs if 0 < outputs[site] == len(calls) - 1][-1:], "head")
        found[calls[-1][0]], head = "head", calls[-1][1]
    if calls and index == 0:
        found |= dict.fromkeys([site for site in outputs if outputs[site] == 1][-1:], "stem")
        found[calls[0][0]], stem = "stem", calls[1][1] if len(calls) > 1 else None
    elif calls and index == 1 and len(attach.weight_layers(blocks[0])) == 1:
        stem = calls[0][1] if all(site.where == "input" for site in blocks[0].sites) else None
    for layer, seen in calls:
        if seen is head or seen is stem:
            found[Site(layer, "input")] = "head" if seen is head else "stem"
    return found


@torch.no_grad()
def unquantized(job: Reconstruction, index: int, x: Tensor) -> list[nn.Module]:
    """Return the layers of a block whose input no site quantizes, without the network's first layer.

    NaN marks tensors in floating point: outputs of layers, and the block's input ``x`` (N, ...) unless the previous
    block quantizes its output. Sites remove NaN. A layer that isn't called must be a site itself.
    """
    block, layers, seen = job.blocks[index], attach.weight_layers(job.blocks[index]), dict[nn.Module, bool]()
    first = [layer for layer, _ in called(job, block, x, slice(1))[:1]] if index == 0 else []

    def look(layer: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        seen[layer] = seen.get(layer, False) or bool(first_argument(arguments, keywords).isnan().any())

    def enter(_: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> Call:
        return with_first(arguments, keywords, first_argument(arguments, keywords).nan_to_num())

    row, before = on(job.device, x[:1]), job.blocks[index - 1].sites[-1:] if index else ()
    if row.is_floating_point() and not any(site.where == "output" for site in before):
        row = row * torch.nan
    with contextlib.ExitStack() as hooks:
        for site in block.sites:
            if site.where == "input":
                hooks.enter_context(site.module.register_forward_pre_hook(enter, with_kwargs=True))
            else:
                hooks.enter_context(site.module.register_forward_hook(lambda *call: call[2].nan_to_num()))
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(look, with_kwargs=True))
            hooks.enter_context(layer.register_forward_hook(lambda *call: call[2] * torch.nan, prepend=True))
        with job.products(), unchanged(block.module), contextlib.suppress(Exception):  # a user's code may reject NaN
            block(row, job.mask_of(slice(1)))
    fine = {*first, *(site.module for site in block.sites if site.where == "input")}
    return [layer for layer in layers if layer not in fine and seen.get(layer, True)]


class LayerInputs:
    """The inputs of a layer in the block's current state, call by call; empty if the block doesn't call the layer.

    An iteration runs the block batch by batch. A batch may call the layer never, once or several times. The first
    iteration records the calls of all layers; later iterations end a batch at its layer's last call.

    Args:
        job: settings; with ``mask_padding``, only tokens of its mask count.
        block: contains the layer.
        layer: linear, ``Conv1D`` or convolution.
        x: (N, ...) cached input of the block.
        before: inputs of an earlier layer, with recorded calls.

    Attributes:
        kept: values that roundings computed from the inputs, by name, for later layers that read the same tensors.
    """

    def __init__(
        self, job: Reconstruction, block: Block, layer: nn.Module, x: Tensor, before: "LayerInputs | None" = None
    ) -> None:
        self.job, self.block, self.layer, self.x = job, block, layer, x
        self.kept: dict[str, Any] = {}
        self._read: list[dict[nn.Module, list[Any]]] = before._read if before else []  # tensors per batch

    def __iter__(self) -> Iterator[Tensor]:
        """Yield float32 (groups, n, features): a group's output channels are sums over its features.

        Features have the order of the weight's other axes; groups is 1 except for grouped convolutions.
        """
        batches = slices(len(self.x), self.job.hyper.batch)
        if not (recorded := len(self._read) == len(batches)):
            self._read.clear()
        for number, rows in enumerate(batches):
            mask = self.job.mask_of(rows)
            for given in self._given(rows, len(self._read[number][self.layer]) if recorded else None):
                inputs = unfolded(self.layer, given.float())
                if mask is not None and self.job.hyper.mask_padding and mask.numel() == inputs.shape[1]:
                    inputs = inputs[:, mask.flatten()]
                if inputs.numel():  # experts may be called without rows
                    yield inputs

    def serve(self, layer: nn.Module) -> bool:
        """Return whether another layer reads the same tensors in all batches, in at most one call each."""
        if isinstance(layer, nn.Conv2d) or isinstance(self.layer, nn.Conv2d) or not self._read:
            return False
        return all(len(read[layer]) <= 1 and read[layer] == read[self.layer] for read in self._read)

    @torch.no_grad()
    def _given(self, rows: slice, calls: int | None) -> list[Tensor]:
        """Run the block on ``rows`` until it has made ``calls`` calls of the layer; None runs and records all calls.

        Return copies of the layer's inputs, because the block may write on them later.
        """
        given: list[Tensor] = []
        alive: list[Tensor] = []
        read: dict[nn.Module, list[Any]] = collections.defaultdict(list)

        def look(layer: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
            value = first_argument(arguments, keywords)
            alive.append(value)
            read[layer].append((id(value), len(alive) if value.is_inference() else value._version))
            if layer is self.layer:
                given.append(value.clone())
                if len(given) == calls:
                    raise Reached

        if calls == 0:
            return given
        with contextlib.ExitStack() as hooks:
            for layer in [self.layer] if calls else attach.weight_layers(self.block):
                hooks.enter_context(layer.register_forward_pre_hook(look, with_kwargs=True))
            with self.job.products(), contextlib.suppress(Reached):
                self.block(on(self.job.device, self.x[rows]), self.job.mask_of(rows))
        if calls is None:
            self._read.append(read)
        return given


@torch.no_grad()
def called(
    job: Reconstruction,
    block: Block,
    x: Tensor,
    rows: slice,
    outputs: dict[Site, int] | None = None,
) -> list[tuple[nn.Module, Tensor]]:
    """Run a block on ``rows`` of ``x`` (N, ...); return its layers in call order, each with its input.

    Layers that read the same tensor share one object. Each site of ``outputs`` gets the number of earlier calls.
    """
    calls: list[tuple[nn.Module, Tensor]] = []
    noted = {} if outputs is None else outputs

    def look(layer: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]) -> None:
        calls.append((layer, first_argument(arguments, keywords)))

    with contextlib.ExitStack() as hooks:
        for layer in attach.weight_layers(block):
            hooks.enter_context(layer.register_forward_pre_hook(look, with_kwargs=True))
        for site in noted:
            hooks.enter_context(
                site.module.register_forward_hook(lambda *_, site=site: noted.update({site: len(calls)}))
            )
        with job.products():
            block(on(job.device, x[rows]), job.mask_of(rows))
    return calls


def unfolded(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the input of a layer as (groups, rows, features), with unchanged type.

    The input ``x`` of a linear or ``Conv1D`` is (..., features), of a convolution (n, C, h, w) or (C, h, w). A row is a
    token, or a position of a convolution's output.
    """
    if not isinstance(layer, nn.Conv2d):
        return x.reshape(1, -1, x.shape[-1])
    x = x if x.ndim == 4 else x[None]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = nn.functional.pad(x, layer._reversed_padding_repeated_twice, mode)
    columns = nn.functional.unfold(x, layer.kernel_size, layer.dilation, stride=layer.stride)
    per_group = columns.unflatten(1, (layer.groups, -1))  # (n, groups, features, places)
    return per_group.permute(1, 0, 3, 2).flatten(1, 2)
