"""What jobs cost, from settings and from what their networks do: the formulas behind ``make plan``. No torch here.

Work is counted op by op on tensors without memory (`flexround.tools.workload`), so it follows the code; the rates are
those of ``params/bill.yaml``. A small network's time is the launching of kernels, a large one's the arithmetic or the
traffic of memory: of an iteration's launches and its work the longer one counts.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

from flexround.errors import SettingsError, suggest
from flexround.settings.layout import PARAMS
from flexround.settings.schema import Count, Hyper, Positive, Recipe, Strict
from flexround.settings.validation import given, read_yaml

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
CACHES = 3  # full-precision input, quantized input, target
STATES = 5  # on disk when a block is done: both inputs and both outputs, and the first of the next
ADAM = 7  # numbers read or written for each one that is learned: value, gradient and two moments; all but one written
ERRORS = 2  # forward passes over the rows on which errors are compared
ERROR_ROWS = 256
EVALUATED = 250  # rows that an evaluation sees at once
LOGITS = 2**28  # logits of a batch of an evaluation
FIRST_STEPS = 2**31  # bytes of the largest tensor of the first steps' rows, up to which they go through at once
LOGIT_COPIES = 3  # logits, their float32 and what the loss makes of them


class Machine(Strict):
    """Rates of the machine that hours are reckoned for."""

    flop_per_second: dict[str, Positive]
    flop_source: str
    bytes_per_second: Positive
    bytes_source: str
    launch_seconds: Positive
    launch_source: str
    process_gb: Positive
    process_source: str
    context_gb: Positive
    context_source: str
    shard_gb: Positive
    shard_source: str


class Size(Strict):
    """Size of a task's data; rows without token counts are as long as the task lets them."""

    train: int
    evaluated: Count
    mean: Positive | None = None
    longest: Positive | None = None
    generated: Count | None = None
    beams: Count = 1
    prompts: Count = 1
    source: str


class Bill(Strict):
    """``params/bill.yaml``."""

    machine: Machine
    tasks: dict[str, Size]

    def size(self, task: str) -> Size:
        """Return the size of a task's data.

        Raises:
            SettingsError: it is not given.
        """
        if task not in self.tasks:
            raise SettingsError(f"params/bill.yaml: tasks: {suggest(task, self.tasks)}; give its rows there")
        return self.tasks[task]


@functools.cache
def bill() -> Bill:
    """Read ``params/bill.yaml``.

    Raises:
        SettingsError: what is wrong with it.
    """
    path = PARAMS / "bill.yaml"
    return given(Bill, read_yaml(path), str(path))


class Op(NamedTuple):
    """One kernel: its multiplications and additions in a type, and the bytes that it reads and writes."""

    flop: float
    kind: str
    traffic: int


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """What a device does for one call.

    Attributes:
        ops: its kernels.
        peak: bytes of the tensors that it makes and that are alive together, at most.
        largest: bytes of the largest of them.
    """

    ops: tuple[Op, ...] = ()
    peak: int = 0
    largest: int = 0

    def seconds(self, kind: str | None = None) -> float:
        """Return the time of the work alone, launches apart; ``kind``: with products in this type, not in their own."""
        return _seconds(self, kind)

    @property
    def launches(self) -> float:
        """Return the time that launching the kernels takes."""
        return len(self.ops) * bill().machine.launch_seconds


@functools.cache
def _seconds(work: Work, kind: str | None) -> float:
    machine = bill().machine
    rates, traffic = machine.flop_per_second, machine.bytes_per_second
    return sum(max(op.flop / rates[kind or op.kind], op.traffic / traffic) for op in work.ops)


@dataclasses.dataclass(frozen=True)
class Rounded:
    """What a rounding does to a weight each iteration, forward and backward.

    Attributes:
        kernels: for one weight.
        traffic: bytes for each element of the weight.
        kept: bytes for each element that live from the forward pass to the optimiser's step: results, gradients.
        learned: learned numbers for each element.
        search: bytes read and written for each element until the initial grid is found.
    """

    kernels: int
    traffic: float
    kept: float
    learned: float
    search: float


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks of a network that are alike.

    Attributes:
        count: how many.
        weights: elements of each quantized weight of one block.
        parameters: elements of all weights of one block.
        forward: a forward pass of a batch.
        learning: forward and backward pass of a batch, quantizers of activations included if the recipe has any.
        saved: bytes that a forward pass of a batch leaves for the backward pass of training, nothing quantized.
        row: elements of the output of one sample, the input if that is larger.
    """

    count: int
    weights: tuple[int, ...]
    parameters: int
    forward: Work
    learning: Work
    saved: int
    row: int


@dataclasses.dataclass(frozen=True)
class Network:
    """A network on a task, at a batch.

    Attributes:
        flop: of one sample's forward pass (2 per multiply-add), the head included.
        parameters: elements of all weights.
        vocabulary: logits of a token; 0 if it has none.
        tokens: of a sample at its longest; 1 for images.
        batch: rows that ``groups`` were counted on.
        groups: its blocks.
    """

    flop: float
    parameters: int
    vocabulary: int
    tokens: int
    batch: int
    groups: tuple[Group, ...]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return sum(group.count for group in self.groups)

    @property
    def row(self) -> int:
        """Elements of the widest activation between two blocks, one sample."""
        return max(group.row for group in self.groups)

    def forward(self, rows: float, part: float, at_once: int, kind: str | None = None) -> float:
        """Return the seconds of a forward pass of all blocks.

        Args:
            rows: how many; ``part`` of their tokens count.
            at_once: rows of a batch.
            kind: type of the products; None for that they were counted in.
        """
        work = sum(group.count * group.forward.seconds(kind) for group in self.groups)
        launches = sum(group.count * group.forward.launches for group in self.groups)
        return rows * max(work * part / self.batch, launches / at_once)


def parts(task: str, network: Network) -> tuple[float, float]:
    """Return the mean row, and the longest of a batch, as parts of the longest that the task allows."""
    size = bill().size(task)
    mean, longest = ((tokens or network.tokens) / network.tokens for tokens in (size.mean, size.longest))
    return mean, min(1.0, longest)


def reconstruction(task: str, network: Network, rounded: Rounded, recipe: Recipe, hyper: Hyper) -> dict[str, float]:
    """Return the seconds of one reconstruction by what they are for."""
    machine = bill().machine
    _, part = parts(task, network)
    separate = bool(recipe.a_bits) and recipe.setting == "B"
    phases = 2 if separate else 1
    learn = rounding = search = 0.0
    for group in network.groups:
        elements = sum(group.weights)
        traffic = elements * (rounded.traffic + ADAM * 4 * rounded.learned) / machine.bytes_per_second
        launches = group.learning.launches + len(group.weights) * rounded.kernels * machine.launch_seconds
        work = group.learning.seconds("tf32" if hyper.precision == "tf32" else None) * part
        learn += group.count * hyper.iters * (max(work + traffic, launches) - traffic)
        learn += separate * group.count * hyper.a_iters * max(work, group.learning.launches)
        rounding += group.count * hyper.iters * traffic
        search += group.count * elements * rounded.search / machine.bytes_per_second
    rows = 2 * hyper.samples + ERRORS * ERROR_ROWS + hyper.a_init_samples
    passes = phases * network.forward(rows, part, hyper.batch)
    return {"learning": learn, "fake quantization": rounding, "grids": search, "cache passes": passes}


def at_once(network: Network) -> int:
    """Return the rows that an evaluation sees at once: fewer than its batch where their logits would be too large."""
    return max(1, min(EVALUATED, LOGITS // max(1, network.tokens * network.vocabulary)))


def evaluation(task: str, network: Network, kind: str, rows: float | None = None) -> float:
    """Return the seconds of an evaluation of a network in the type ``kind`` on ``rows``, all of the task's if None."""
    size, machine = bill().size(task), bill().machine
    mean, _ = parts(task, network)
    rows = size.evaluated if rows is None else rows
    if size.generated is None:
        return network.forward(rows, mean, at_once(network), kind)
    steps = rows / size.prompts * size.generated
    launches = sum(group.count * group.forward.launches for group in network.groups)
    # A step of a beam search reads every weight, and its tokens are few: launches or weights, whichever takes longer.
    return steps * max(launches, BYTES[kind] * network.parameters / machine.bytes_per_second)


def training(task: str, network: Network, settings: dict[str, Any]) -> float:
    """Return the seconds of fine-tuning: forward, both gradients, and once more forward if layers are recomputed."""
    size, machine = bill().size(task), bill().machine
    mean, _ = parts(task, network)
    adapters = settings.get("lora") is not None
    kind = {"bf16": "bfloat16", "fp16": "float16"}.get(settings.get("precision", "no"), "float32")
    passes = (2 if adapters else 3) + bool(settings.get("checkpointing"))
    rows = size.train * settings["epochs"]
    work = rows * mean * passes * network.flop / machine.flop_per_second[kind]
    seen = settings.get("at_once") or settings["batch"]
    launches = rows / seen * passes * sum(group.count * group.forward.launches for group in network.groups)
    adam = 0.0 if adapters else rows / settings["batch"] * ADAM * 4 * network.parameters / machine.bytes_per_second
    return max(work, launches) + adam


def cache_bytes(network: Network, hyper: Hyper) -> int:
    """Return the bytes of the activation caches at the widest block boundary."""
    return CACHES * hyper.samples * network.row * BYTES[hyper.cache_dtype]


def state_bytes(network: Network, hyper: Hyper) -> int:
    """Return the bytes on disk that one unfinished reconstruction needs; they are written beside the work."""
    return STATES * hyper.samples * network.row * BYTES[hyper.cache_dtype]


def quantized_bytes(network: Network, recipe: Recipe) -> float:
    """Return the bytes on disk of a quantized network: packed codes, and float32 for what is not quantized."""
    codes = sum(group.count * sum(group.weights) for group in network.groups)
    return codes * (recipe.w_bits or 8) / 8 + 4 * (network.parameters - codes)


class Memory(NamedTuple):
    """Bytes that a job needs at most."""

    gpu: float
    host: float
    way_out: str


def reconstruction_memory(
    network: Network, rounded: Rounded, recipe: Recipe, hyper: Hyper, streamed: bool, card: float
) -> Memory:
    """Return what a reconstruction needs; caches lie on the GPU where they take less than half of a ``card``'s bytes.

    On the GPU: the network, or a block of it; of the block at work what is learned, its gradient, moments and
    roundings; the activations of a batch, or of the first steps' rows.
    """
    machine = bill().machine
    resident = 0 if streamed else 4 * network.parameters
    peak = 0.0
    for group in network.groups:
        elements = sum(group.weights)
        # The weights (streamed: and where they are read), what is learned and its moments; gradients are in `kept`.
        block = (8 if streamed else 4) * group.parameters + elements * (rounded.kept + 3 * 4 * rounded.learned)
        rows = min(hyper.a_init_samples, hyper.samples) if recipe.a_bits else 0
        at_once = rows if group.forward.largest / network.batch * rows <= FIRST_STEPS else hyper.batch
        first = group.forward.peak * at_once / network.batch + 4 * group.parameters + 3 * 4 * rows * group.row
        peak = max(peak, block + group.learning.peak * hyper.batch / network.batch, first)
    caches = cache_bytes(network, hyper)
    context = machine.context_gb * 1e9
    on_gpu = caches <= card / 2
    gpu = context + resident + peak + (caches if on_gpu else 0)
    host = machine.process_gb * 1e9 + (8 * max(group.parameters for group in network.groups) if streamed else resident)
    return Memory(
        gpu,
        host + (0 if on_gpu else caches),
        "lower a_init_samples or batch, or cache_dtype: bfloat16, or ask for a larger GPU (needs)",
    )


def evaluation_memory(network: Network, kind: str, streamed: bool) -> Memory:
    """Return what an evaluation needs that holds the network in the type ``kind``."""
    machine, size = bill().machine, BYTES[kind]
    widest = max(group.forward.peak for group in network.groups)
    rows = at_once(network)
    logits = LOGIT_COPIES * 4 * rows * network.tokens * network.vocabulary
    gpu = machine.context_gb * 1e9 + size * network.parameters + widest * rows / network.batch + logits
    host = machine.process_gb * 1e9
    host += 2e9 * machine.shard_gb if streamed else 2 * 4 * network.parameters
    return Memory(gpu, host, "set `evaluated: float16` for the checkpoint, or ask for more memory (needs)")


def training_memory(network: Network, settings: dict[str, Any], streamed: bool) -> Memory:
    """Return what fine-tuning needs: weights, gradients and moments, and the activations of what is seen at once."""
    machine = bill().machine
    adapters, checkpointing = settings.get("lora") is not None, bool(settings.get("checkpointing"))
    rows = settings.get("at_once") or settings["batch"]
    kept = sum(group.count * group.saved for group in network.groups) * rows / network.batch
    if checkpointing:
        inputs = sum(4 * group.count * group.row * rows for group in network.groups)
        kept = inputs + max(group.saved for group in network.groups) * rows / network.batch
    kept += max(group.forward.peak for group in network.groups) * rows / network.batch  # what comes and goes
    held = (2 if adapters else 16) * network.parameters
    logits = LOGIT_COPIES * 4 * rows * network.tokens * network.vocabulary
    host = machine.process_gb * 1e9 + (2e9 * machine.shard_gb if streamed else 2 * 4 * network.parameters)
    return Memory(
        machine.context_gb * 1e9 + held + kept + logits,
        host,
        "set at_once and checkpointing in the train rules, or ask for a larger GPU (needs)",
    )
