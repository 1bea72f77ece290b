"""What jobs cost, by a network's shapes and the rates of ``params/bill.yaml``: the formulas of ``make plan``."""

import functools
from typing import Any, Literal, NamedTuple

from flexround.settings.layout import PARAMS
from flexround.settings.schema import Hyper, Positive, Recipe, Size, Strict
from flexround.settings.validation import load

Kind = Literal["images", "texts"]

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BOTH_WAYS = 3  # forward passes that a forward and backward pass count as
CACHES = 3  # full-precision input, quantized input, target
STATES = 5  # on disk when a block is done: both inputs and both outputs, and the first of the next
CACHE_PASSES = 2  # of all samples through a block: full-precision output, quantized output
EVALUATED = 50  # rows that an evaluation sees at once: more are no faster, and other sums have other last bits
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
