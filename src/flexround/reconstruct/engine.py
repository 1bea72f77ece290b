"""Block-by-block reconstruction for any adapter: the B setting (BRECQ) and the Q setting (QDrop).

Activations flow from block to block through carried caches. No prefix of the network runs again, and caches exist
at one block boundary at a time. A block's result is written when the block is done.
"""

import logging
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flexround.errors import SettingsError, some
from flexround.machine import hardware, memory
from flexround.machine.seeding import derive
from flexround.metrics import LARGEST_RATIO
from flexround.models.surgery.attach import weight_layers
from flexround.models.tensors import matrices, places, seeded, unchanged, within
from flexround.reconstruct import cache, codes
from flexround.reconstruct.codes import WEIGHT, Result
from flexround.reconstruct.phases import Phase, StepPhase, WeightPhase
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.reconstruct.state import State

log = logging.getLogger(__name__)
REST = "rest"  # position of the tensors outside all blocks
ON_HOST = "gpu-cache-mb 0 (activations in the host's memory)"
SMALLER = ("cache_dtype or precision bfloat16", "a smaller batch or a_init_samples")  # ways to lower a block's memory


def reconstruct(
    job: Reconstruction,
    samples: Tensor,
    state: State,
    gpu_bytes: int | None = None,
    done_block: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Quantize a model; write the blocks' results to ``state``, and to ``job.model`` if the model is in memory.

    Args:
        job, samples: model and settings; (N, ...) inputs of the first block.
        state: opened state directory; its finished blocks are not computed again.
        gpu_bytes: bytes of GPU memory for caches; None for ``cache.limit``.
        done_block: called with each block's record when the block is done.

    Returns:
        One record per block and phase: errors, losses, seconds, peak memory in MB, location of the caches, and whether
        anything was ``learned``. ``nearest`` names layers that could learn but stay at round-to-nearest. ``floating``
        names matrices in floating point. With quantized activations, ``inputs`` names layers with inputs in floating
        point.

    Raises:
        NumericalError: NaN or Inf, with block and iteration.
        InputError: disk or memory is too small, or a GPU is lost.
    """
    job.model.requires_grad_(False)
    owners = places(job.model)
    inside = [within(block.module, owners) for block in job.blocks]
    store = place_caches(job, samples, gpu_bytes)
    samples = store.copy(samples)
    if not state.entries:  # first the tensors outside all blocks
        rest = [name for name in owners if not any(name in names for names in inside)]
        with job.weights.surroundings():
            part = codes.part({}, job.model, rest, copied=False)
        state.commit(REST, part, {})
    ways = (ON_HOST, *SMALLER) if store.device.type == "cuda" else SMALLER
    phases: list[Phase] = [WeightPhase(job, samples, store)]
    if job.recipe.a_bits and not job.joint:
        phases.append(StepPhase(job, samples, store))
    for phase in phases:
        done = sum(entry["position"].startswith(f"{phase.name}/") for entry in state.entries)
        if done == len(job.blocks):
            continue
        carry = phase.start() if done == 0 else state.carry(store)
        for index in range(done, len(job.blocks)):
            with job.weights.block(index, again=phase is not phases[-1]):
                what = f"block {job.blocks[index].name}, phase {phase.name}, activations {store}"
                with hardware.enough(what, *ways), unchanged(job.blocks[index].module):
                    learned, carry, record = _timed(phase, index, carry, state)
                plain: list[str] = []
                if isinstance(phase, WeightPhase):
                    plain = [name for name in inside[index] if f"{WEIGHT}{name.removesuffix('.weight')}" not in learned]
                    weights = {(layer, "weight") for layer in weight_layers(job.blocks[index])}  # names aren't unique
                    record["floating"] = matrices(job.model, [name for name in plain if owners[name] not in weights])
                part = codes.part(learned, job.model, plain)
            if index + 1 == len(job.blocks):
                carry = {}
            state.commit(f"{phase.name}/{index:03d}", part, carry, record)
            done_block(record)
            memory.return_freed_memory()
    return [entry["record"] for entry in state.entries if "record" in entry]


def left(job: Reconstruction, report: Sequence[dict[str, Any]]) -> list[str]:
    """Return warnings about layers that learned nothing, matrices and inputs in floating point, and bad blocks.

    A block is bad if its codes are much worse than round-to-nearest. It is also bad if they are worse than
    round-to-nearest and much worse than the learned weights, as with AdaRound.
    ``report`` is the return value of ``reconstruct``; the job's model may have lost its values.
    """
    nearest = [name for record in report for name in record.get("nearest", ())]
    owners = places(job.model)
    inside = {name for block in job.blocks for name in within(block.module, owners)}
    floating = [name for record in report for name in record.get("floating", ())]
    floating += matrices(job.model, [name for name in owners if name not in inside])
    inputs = [name for record in report for name in record.get("inputs", ())]
    learned = [record for record in report if record["learned"] and "error_soft" in record]
    bad = [
        record["block"]
        for record in learned
        if record["error_hard"] > LARGEST_RATIO * record["error_rtn"]
        or record["error_hard"] > max(LARGEST_RATIO * record["error_soft"], record["error_rtn"])
    ]
    said = {
        "not learned, at round-to-nearest": nearest,
        "codes worse than round-to-nearest; look at iters, lr or codes()": bad,
        "in floating point": floating,
        "inputs in floating point": inputs,
    }
    return [f"{what}: {some(names)}" for what, names in said.items() if names]


def place_caches(job: Reconstruction, samples: Tensor, gpu_bytes: int | None = None) -> cache.Store:
    """Choose the memory of a job's activations for ``samples`` (N, ...); see ``cache.plan``.

    Raises:
        SettingsError: grids per token for images (N, C, H, W), which have no tokens.
    """
    shapes = boundaries(job, samples)
    images = any(len(shape) == cache.IMAGES for shape in shapes[1::2])  # the blocks' inputs
    if images and job.recipe.a_bits and job.hyper.a_granularity == "token":
        raise SettingsError("a_granularity: token is for token sequences; images have none, set it to tensor")
    row = max(shape.numel() for shape in shapes)
    dtype = getattr(torch, job.hyper.cache_dtype)
    keeps = any(block.keeps_strides for block in job.blocks)
    most = cache.limit(job.device) if gpu_bytes is None else gpu_bytes
    return cache.plan(row, len(samples), job.device, dtype, most, keeps)


@torch.no_grad()
def boundaries(job: Reconstruction, samples: Tensor) -> list[torch.Size]:
    """Return the shapes of a row of activations: before and after each block's glue, then the network's output."""
    x, mask = cache.on(job.device, samples[:1]), job.mask_of(slice(1))
    shapes = [x.shape]
    for block in job.blocks:
        with job.weights.surroundings():
            x = block.before(x)
        shapes.append(x.shape)
        if job.weights.alike:
            return [*shapes, *[x.shape] * (2 * len(job.blocks) - 1)]
        x = block(x, mask)
        shapes.append(x.shape)
    return shapes


def earlier(state: State, index: int) -> Result:
    """Return a block's results from earlier phases."""
    earlier: Result = {}
    for entry in state.entries:
        if entry["position"].endswith(f"/{index:03d}"):
            earlier |= state.part(entry).quantized
    return earlier


def _timed(
    phase: Phase, index: int, carry: dict[str, Tensor], state: State
) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
    """Run one block of a phase; add seconds and peak memory to its record and log it in one line."""
    job = phase.job
    if job.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(job.device)
    start, cpu = time.perf_counter(), time.process_time()
    phase.full_precision(index, carry)
    codes.apply(earlier(state, index), job.model, [job.blocks[index]], job.device)
    seed = derive(*job.seed_parts, f"global {phase.name}", job.blocks[index].name)
    with seeded(seed, job.device):  # a user's rounding may draw from the global generators
        learned, carry, record = phase.learn(index, carry)
    wait(job.device)
    record["seconds"], record["cpu_seconds"] = time.perf_counter() - start, time.process_time() - cpu
    record["peak_mb"] = peak_mb(job.device)
    record["caches"] = str(phase.store)
    numbers = " ".join(f"{key}={value:.4g}" for key, value in record.items() if isinstance(value, float))
    past = [entry["record"] for entry in state.entries if entry.get("record", {}).get("phase") == phase.name]
    left = statistics.mean(each["seconds"] for each in (*past, record)) * (len(job.blocks) - index - 1) / 60
    pace = f"{count / record['seconds']:.1f} iterations/s, " if (count := record.get("iterations")) else ""
    said = f"{record['block']}: {pace}{left:.0f} min left in this phase"
    log.info("%s %d/%d %s; %s", phase.name, index + 1, len(job.blocks), said, numbers)
    return learned, carry, record


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_mb(device: torch.device) -> float:
    """Return the peak memory in MB: of the GPU since the last reset, else of the process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
