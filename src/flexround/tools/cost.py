"""What jobs cost, by a network's shapes and the rates of ``params/bill.yaml``: the formulas of ``make plan``.

Shapes come from the network's own code, which runs on tensors that have no memory.
"""

import contextlib
import functools
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flexround.errors import InputError
from flexround.models import blocks, build
from flexround.models.surgery import attach
from flexround.models.tensors import weightless
from flexround.settings.layout import PARAMS
from flexround.settings.schema import EVALUATED, Checkpoint, Hyper, Positive, Recipe, Size, Strict
from flexround.settings.validation import load
from flexround.tasks.protocol import Task

Kind = Literal["images", "texts"]

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BOTH_WAYS = 3  # forward passes that a forward and backward pass count as
CACHES = 3  # full-precision input, quantized input, target
STATES = 5  # on disk when a block is done: both inputs and both outputs, and the first of the next
CACHE_PASSES = 2  # of all samples through a block: full-precision output, quantized output
LOGITS = 2**28  # logits of a batch of an evaluation


class Machine(Strict):
    """``params/bill.yaml``: rates of the machine that hours are reckoned for."""

    flop_per_second: dict[str, Positive]
    learning_share: dict[Kind, Positive]
    layer_seconds: dict[Kind, Positive]
    sources: dict[str, str]


@functools.cache
def machine() -> Machine:
    """Read ``params/bill.yaml``."""
    return load(Machine, PARAMS / "bill.yaml")


class BlockCost(NamedTuple):
    """A block of a network, and what one sample does in it."""

    flop: int  # of a forward pass, 2 per multiply-add
    weights: int  # elements of the quantized weights
    layers: int  # how many those are
    row: int  # elements of the output, or of the input if that is larger


class NetworkCost(NamedTuple):
    """A network on a task."""

    kind: Kind
    flop: int  # of one sample's forward pass, the head included
    parameters: int  # elements of all weights
    tokens: int  # of a sample at its longest; 1 for images
    logits: int  # of a sample at its longest, one of the vocabulary for each token; 0 if it has none
    blocks: tuple[BlockCost, ...]

    def seconds(self, rows: float, batches: float, precision: str, share: float = 1.0) -> float:
        """Return the time of forward passes: of arithmetic at a share of its rate, or of launches if that is longer."""
        rates, layers = machine(), sum(block.layers for block in self.blocks)
        arithmetic = rows * self.flop / (share * rates.flop_per_second[precision])
        return max(arithmetic, batches * layers * rates.layer_seconds[self.kind])


class Need(NamedTuple):
    """What a job needs."""

    seconds: float  # on the GPU
    disk: float = 0  # bytes of its result
    cache: int = 0  # bytes of one activation cache at the widest block boundary


def _part(tokens: float | None, network: NetworkCost) -> float:
    """Return a number of tokens as a part of the most that the task allows; None is all of them."""
    return min(1.0, (tokens or network.tokens) / network.tokens)


def training(size: Size, network: NetworkCost, settings: dict[str, Any] | None, streamed: bool) -> Need:
    """Return what fine-tuning needs: forward, both gradients, and once more forward if layers are recomputed.

    Without ``settings`` the weights are taken as they are, and those of a streamed network are linked.
    """
    if settings is None:
        return Need(0, 0 if streamed else 4 * network.parameters)
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(settings.get("precision", "no"), "float32")
    again, adapters = bool(settings.get("checkpointing")), settings.get("lora") is not None
    rows = size.train * settings["epochs"] * (BOTH_WAYS + again - adapters)
    batches = rows / (settings.get("at_once") or settings["batch"])
    return Need(network.seconds(rows * _part(size.mean, network), batches, precision), 4 * network.parameters)


def reconstruction(size: Size, network: NetworkCost, recipe: Recipe, hyper: Hyper) -> Need:
    """Return what a reconstruction needs; its result is packed codes and the rest in float32."""
    separate = bool(recipe.a_bits) and recipe.setting == "B"
    batches = BOTH_WAYS * (hyper.iters + separate * hyper.a_iters)
    rows = batches * hyper.batch + (1 + separate) * CACHE_PASSES * hyper.samples
    part, share = _part(size.longest, network), machine().learning_share[network.kind]
    codes = sum(block.weights for block in network.blocks)
    return Need(
        network.seconds(rows * part, batches, hyper.precision, share),
        codes * (recipe.w_bits or 8) / 8 + 4 * (network.parameters - codes),
        hyper.samples * max(block.row for block in network.blocks) * BYTES[hyper.cache_dtype],
    )


def evaluation(size: Size, network: NetworkCost, precision: str, rows: int | None = None) -> Need:
    """Return what an evaluation needs of a network in a precision, on ``rows`` or on all of the task's."""
    rows = size.evaluated if rows is None else rows
    arithmetic, batches = (
        rows * _part(size.mean, network),
        rows / max(1, min(EVALUATED, LOGITS // max(1, network.logits))),
    )
    if size.generated:  # a beam search sees few tokens at a step: launches alone count
        arithmetic, batches = 0, rows / size.prompts * size.generated
    return Need(network.seconds(arithmetic, batches, precision))


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
