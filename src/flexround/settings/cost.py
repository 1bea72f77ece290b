"""What jobs cost, by a network's shapes and the rates of ``params/bill.yaml``: the formulas of ``make plan``."""

import functools
from typing import Any, Literal, NamedTuple

from pydantic import Field

from flexround.errors import SettingsError, suggest
from flexround.settings.layout import PARAMS
from flexround.settings.schema import Count, Hyper, Positive, Recipe, Strict
from flexround.settings.validation import load

Kind = Literal["images", "texts"]

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BOTH_WAYS = 3  # forward passes that a forward and backward pass count as
CACHES = 3  # full-precision input, quantized input, target
STATES = 5  # on disk when a block is done: both inputs and both outputs, and the first of the next
CACHE_PASSES = 2  # of all samples through a block: full-precision output, quantized output
EVALUATED = 50  # rows that an evaluation sees at once: more are no faster, and other sums have other last bits
LOGITS = 2**28  # logits of a batch of an evaluation
LOGIT_BYTES = 12  # of one logit: as it is, in float32, and what the loss makes of it
LEARNED = 24  # bytes for each element that is learned: itself, gradient, two moments, the rounded weight, its gradient
TRAINED = 16  # bytes of a weight, its gradient and its two moments
LEARNING_PEAK = 1.5  # of what a forward pass keeps: quantizers of activations and gradients
FIRST_STEPS = 2**32  # bytes that the rows for the first steps of activations take at most


class Machine(Strict):
    """Rates of the machine that hours are reckoned for."""

    flop_per_second: dict[str, Positive]
    learning_share: dict[Kind, Positive]
    layer_seconds: dict[Kind, Positive]
    process_gb: Positive
    context_gb: Positive
    shard_gb: Positive
    sources: dict[str, str]


class Size(Strict):
    """Size of a task's data; rows without token counts are as long as the task lets them."""

    train: int
    evaluated: Count
    gate: Count | None = Field(None, description="rows of a gate with options of its own; none: all that are evaluated")
    mean: Positive | None = None
    longest: Positive | None = None
    generated: Count | None = None
    prompts: Count = 1
    source: str


class Bill(Strict):
    """``params/bill.yaml``."""

    machine: Machine
    tasks: dict[str, Size]


@functools.cache
def bill() -> Bill:
    """Read ``params/bill.yaml``."""
    return load(Bill, PARAMS / "bill.yaml")


class BlockCost(NamedTuple):
    """A block of a network, and what one sample does in it."""

    flop: int  # of a forward pass, 2 per multiply-add
    parameters: int  # elements of all its weights
    weights: int  # elements of those that are quantized
    layers: int  # how many those are
    saved: int  # bytes that a forward pass in float32 keeps for the backward pass
    row: int  # elements of the output, or of the input if that is larger


class NetworkCost(NamedTuple):
    """A network on a task."""

    kind: Kind
    flop: int  # of one sample's forward pass, the head included
    parameters: int  # elements of all weights
    tokens: int  # of a sample at its longest; 1 for images
    logits: int  # of a sample at its longest, one of the vocabulary for each token; 0 if it has none
    blocks: tuple[BlockCost, ...]

    @property
    def saved(self) -> int:
        """Bytes that the forward pass of one sample keeps in the block where they are most."""
        return max(block.saved for block in self.blocks)

    def seconds(self, rows: float, batches: float, precision: str, share: float = 1.0) -> float:
        """Return the time of forward passes: of arithmetic at a share of its rate, or of launches if that is longer."""
        machine, layers = bill().machine, sum(block.layers for block in self.blocks)
        arithmetic = rows * self.flop / (share * machine.flop_per_second[precision])
        return max(arithmetic, batches * layers * machine.layer_seconds[self.kind])


class Need(NamedTuple):
    """What a job needs at most."""

    seconds: float  # on the GPU
    gpu: float  # bytes of its memory
    host: float  # bytes of the host's
    way_out: str  # where those are not there
    disk: float = 0  # bytes of its result
    cache: int = 0  # bytes of one activation cache at the widest block boundary


def size_of(task: str) -> Size:
    """Return the size of a task's data."""
    if task not in bill().tasks:
        raise SettingsError(f"params/bill.yaml: tasks: {suggest(task, bill().tasks)}; give its rows there")
    return bill().tasks[task]


def _part(tokens: float | None, network: NetworkCost) -> float:
    """Return a number of tokens as a part of the most that the task allows; None is all of them."""
    return min(1.0, (tokens or network.tokens) / network.tokens)


def _files(network: NetworkCost, streamed: bool) -> float:
    """Return the bytes of the host's memory while a network is read: of one file, or of all weights twice."""
    return 1e9 * bill().machine.process_gb + (2e9 * bill().machine.shard_gb if streamed else 8 * network.parameters)


def training(task: str, network: NetworkCost, settings: dict[str, Any] | None, streamed: bool) -> Need:
    """Return what fine-tuning needs: forward, both gradients, and once more forward if layers are recomputed.

    In memory: weights, gradients and moments, and the activations of what is seen at once. Without ``settings`` the
    weights are taken as they are, and those of a streamed network are linked.
    """
    machine, size = bill().machine, size_of(task)
    if settings is None:
        host = 1e9 * machine.process_gb if streamed else _files(network, streamed)
        return Need(0, 0, host, "ask for more memory (needs)", 0 if streamed else 4 * network.parameters)
    precision = {"bf16": "bfloat16", "fp16": "float16"}.get(settings.get("precision", "no"), "float32")
    at_once = settings.get("at_once") or settings["batch"]
    again, adapters = bool(settings.get("checkpointing")), settings.get("lora") is not None
    rows = size.train * settings["epochs"] * (BOTH_WAYS + again - adapters)
    kept = sum(4 * block.row if again else block.saved * BYTES[precision] / 4 for block in network.blocks)
    sample = kept + network.saved + LOGIT_BYTES * network.logits
    gpu = (2 if adapters else TRAINED) * network.parameters + at_once * sample
    return Need(
        network.seconds(rows * _part(size.mean, network), rows / at_once, precision),
        1e9 * machine.context_gb + gpu,
        _files(network, streamed),
        "set at_once and checkpointing in the train rules, or ask for a larger GPU (needs)",
        4 * network.parameters,
    )


def reconstruction(task: str, network: NetworkCost, recipe: Recipe, hyper: Hyper, streamed: bool, card: float) -> Need:
    """Return what a reconstruction needs; caches lie on the GPU where they take at most half of a ``card``'s bytes."""
    machine = bill().machine
    separate = bool(recipe.a_bits) and recipe.setting == "B"
    batches = BOTH_WAYS * (hyper.iters + separate * hyper.a_iters)
    rows = batches * hyper.batch + (1 + separate) * CACHE_PASSES * hyper.samples
    part, share = _part(size_of(task).longest, network), machine.learning_share[network.kind]
    first = min(hyper.a_init_samples, hyper.samples) if recipe.a_bits else 0
    row = max(block.row for block in network.blocks)
    # The block at work, and where it is read from; what is learned of it; activations of a batch or for first steps.
    gpu = max((8 if streamed else 4) * block.parameters + LEARNED * block.weights for block in network.blocks)
    gpu += CACHES * 4 * first * row
    activations = max(LEARNING_PEAK * hyper.batch * network.saved, min(first * network.saved, FIRST_STEPS))
    resident = 0 if streamed else 4 * network.parameters
    cache = hyper.samples * row * BYTES[hyper.cache_dtype]
    on_gpu = CACHES * cache <= card / 2
    codes = sum(block.weights for block in network.blocks)
    host = 8 * max(block.parameters for block in network.blocks) if streamed else resident
    return Need(
        network.seconds(rows * part, batches, hyper.precision, share),
        1e9 * machine.context_gb + gpu + activations + resident + on_gpu * CACHES * cache,
        1e9 * machine.process_gb + host + (not on_gpu) * CACHES * cache,
        "lower a_init_samples or batch, or cache_dtype: bfloat16, or ask for a larger GPU (needs)",
        codes * (recipe.w_bits or 8) / 8 + 4 * (network.parameters - codes),  # packed codes, the rest in float32
        cache,
    )


def evaluation(task: str, network: NetworkCost, precision: str, streamed: bool, rows: int | None = None) -> Need:
    """Return what an evaluation needs of a network in a precision, on ``rows`` or on all of the task's."""
    machine, size = bill().machine, size_of(task)
    rows = size.evaluated if rows is None else rows
    at_once = max(1, min(EVALUATED, LOGITS // max(1, network.logits)))
    arithmetic, batches = rows * _part(size.mean, network), rows / at_once
    if size.generated:  # a beam search sees few tokens at a step: launches alone count
        arithmetic, batches = 0, rows / size.prompts * size.generated
    activations = network.saved * BYTES[precision] / 4 + LOGIT_BYTES * network.logits
    return Need(
        network.seconds(arithmetic, batches, precision),
        1e9 * machine.context_gb + BYTES[precision] * network.parameters + at_once * activations,
        _files(network, streamed),
        "set `evaluated: float16` for the checkpoint, or ask for more memory (needs)",
    )
