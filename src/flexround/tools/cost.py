"""The cost of jobs, from a network's shapes and the rates in ``params/bill.yaml``: the formulas of ``make plan``.

Shapes come from the network's own code, run on tensors without memory.
"""

import functools
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flexround.models import blocks, build
from flexround.models.surgery import attach
from flexround.models.tensors import weightless
from flexround.settings.layout import PARAMS
from flexround.settings.schema import EVALUATED, Checkpoint, Hyper, Positive, Recipe, Size, Strict
from flexround.settings.validation import load
from flexround.tasks.protocol import Task

Kind = Literal["images", "texts"]

BOTH_WAYS = 3  # cost of a forward and a backward pass, in forward passes
CACHE_PASSES = 2  # passes of all samples through a block: full-precision output, quantized output
LOGITS = 2**28  # logits per batch of an evaluation


class Machine(Strict):
    """``params/bill.yaml``: rates of the machine for which hours are estimated."""

    flop_per_second: dict[str, Positive]
    learning_share: dict[Kind, Positive]
    layer_seconds: dict[Kind, Positive]
    sources: dict[str, str]


@functools.cache
def machine() -> Machine:
    """Read ``params/bill.yaml``."""
    return load(Machine, PARAMS / "bill.yaml")


class BlockCost(NamedTuple):
    """A block of a network, with its cost for one sample."""

    flop: int  # for a forward pass, 2 per multiply-add
    weights: int  # elements of the quantized weights
    layers: int  # number of quantized weight tensors


class NetworkCost(NamedTuple):
    """A network on a task."""

    kind: Kind
    flop: int  # for one sample's forward pass, including the head
    parameters: int  # elements of all weights
    tokens: int  # of the longest sample; 1 for images
    logits: int  # of the longest sample: vocabulary size for each token; 0 without logits
    blocks: tuple[BlockCost, ...]

    def seconds(self, rows: float, batches: float, precision: str, share: float = 1.0) -> float:
        """Return the seconds of forward passes: arithmetic at a share of its rate, or launches if they take longer."""
        rates, layers = machine(), sum(block.layers for block in self.blocks)
        arithmetic = rows * self.flop / (share * rates.flop_per_second[precision])
        return max(arithmetic, batches * layers * rates.layer_seconds[self.kind])


class Need(NamedTuple):
    """The time and disk space that a job needs."""

    seconds: float  # on the GPU
    disk: float = 0  # bytes of the job's result


def _part(tokens: float | None, network: NetworkCost) -> float:
    """Return a number of tokens as a fraction of the task's maximum; None means the maximum."""
    return min(1.0, (tokens or network.tokens) / network.tokens)


def training(size: Size, network: NetworkCost, settings: dict[str, Any] | None, streamed: bool) -> Need:
    """Return the needs of fine-tuning: forward, both gradients, and a second forward if layers are recomputed.

    Without ``settings`` the weights are used unchanged, and a streamed network's weights are linked.
    """
    if settings is None:
        return Need(0, 0 if streamed else 4 * network.parameters)
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(settings.get("precision", "no"), "float32")
    again, adapters = bool(settings.get("checkpointing")), settings.get("lora") is not None
    rows = size.train * settings["epochs"] * (BOTH_WAYS + again - adapters)
    batches = rows / (settings.get("at_once") or settings["batch"])
    return Need(network.seconds(rows * _part(size.mean, network), batches, precision), 4 * network.parameters)


def reconstruction(size: Size, network: NetworkCost, recipe: Recipe, hyper: Hyper) -> Need:
    """Return the needs of a reconstruction; its result has packed codes and all other tensors in float32."""
    separate = bool(recipe.a_bits) and recipe.setting == "B"
    batches = BOTH_WAYS * (hyper.iters + separate * hyper.a_iters)
    rows = batches * hyper.batch + (1 + separate) * CACHE_PASSES * hyper.samples
    part, share = _part(size.longest, network), machine().learning_share[network.kind]
    codes = sum(block.weights for block in network.blocks)
    return Need(
        network.seconds(rows * part, batches, hyper.precision, share),
        codes * (recipe.w_bits or 8) / 8 + 4 * (network.parameters - codes),
    )


def evaluation(size: Size, network: NetworkCost, precision: str, rows: int | None = None) -> Need:
    """Return the needs of an evaluation in a precision, on ``rows`` rows or on all rows of the task."""
    rows = size.evaluated if rows is None else rows
    arithmetic = rows * _part(size.mean, network)
    batches = rows / max(1, min(EVALUATED, LOGITS // max(1, network.logits)))
    if size.generated:  # a beam search computes few tokens per step: only launches count
        arithmetic, batches = 0, rows / size.prompts * size.generated
    return Need(network.seconds(arithmetic, batches, precision))


def network(checkpoint: Checkpoint, task: Task) -> NetworkCost:
    """Count a checkpoint's operations on the longest sample of a task; equal blocks are counted once."""
    with weightless():
        model = build.architecture(checkpoint, task.head).to("meta")
    x = torch.zeros(1, *task.input_shape, dtype=getattr(torch, task.input_dtype), device="meta")
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
    """Run a block on one sample; return its cost and its output."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = block(x, None)
    layers = [layer.weight.numel() for layer in attach.weight_layers(block)]  # type: ignore[operator]
    return BlockCost(counter.get_total_flops(), sum(layers), len(layers)), out
