"""What a network computes, block by block, from shapes alone: real code on tensors that have no memory."""

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flexround.errors import InputError
from flexround.models import blocks, build
from flexround.models.surgery import attach
from flexround.models.tensors import weightless
from flexround.settings.cost import BlockCost, NetworkCost
from flexround.settings.schema import Checkpoint
from flexround.tasks.protocol import Task


def network(checkpoint: Checkpoint, task: Task) -> NetworkCost:
    """Count a checkpoint's architecture on one sample of a task, at its longest; blocks that are alike count once.

    Code that looks at the values of tensors, such as that of networks cut by structure, needs tensors in memory.
    """
    try:
        return _counted(checkpoint, task, "meta")
    except (InputError, RuntimeError):
        return _counted(checkpoint, task, "cpu")


def _counted(checkpoint: Checkpoint, task: Task, device: str) -> NetworkCost:
    with weightless() if device == "meta" else contextlib.nullcontext():
        model = build.architecture(checkpoint, task.head).to(device)
    x = torch.zeros(1, *task.input_shape, dtype=getattr(torch, task.input_dtype), device=device)
    known: dict[tuple[object, ...], tuple[BlockCost, Tensor]] = {}
    counted = []
    for block in build.cut(checkpoint, model):
        x = block.before(x)
        key = type(block.module), x.shape, *(value.shape for value in block.module.parameters())
        if key not in known:
            known[key] = _count(block, x)
        one, x = known[key]
        counted.append(one)
    texts = task.input_dtype == "int64"
    tokens = task.input_shape[-1] if texts else 1
    config: Any = getattr(model, "config", None)
    logits = tokens * config.vocab_size if task.head.get("head") == "causal-lm" else 0
    flop = sum(block.flop for block in counted) + 2 * logits * x.shape[-1]
    parameters = sum(value.numel() for value in model.parameters())
    return NetworkCost("texts" if texts else "images", flop, parameters, tokens, logits, tuple(counted))


def _count(block: blocks.Block, x: Tensor) -> tuple[BlockCost, Tensor]:
    """Run a block on one sample; return what was counted, and its output."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = block(x, None)
    layers = [layer.weight.numel() for layer in attach.weight_layers(block)]  # type: ignore[operator]
    sizes = sum(layers), len(layers), max(x.numel(), out.numel())
    return BlockCost(counter.get_total_flops(), *sizes), out
