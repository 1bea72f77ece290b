"""Block-by-block reconstruction for any adapter: the B setting (BRECQ) and the Q setting (QDrop).

Activations flow from block to block through the carried caches; no prefix of the network is ever run again, and only
the caches of one block boundary exist at a time.
"""

import logging
import resource
import time
from typing import Any

import torch
from torch import Tensor

from flexround.reconstruct.cache import cache_device, cached
from flexround.reconstruct.job import Job
from flexround.reconstruct.phases import Phase, StepPhase, WeightPhase
from flexround.reconstruct.result import Result, apply, flatten, unflatten
from flexround.reconstruct.state import State

log = logging.getLogger(__name__)


def reconstruct(job: Job, samples: Tensor, state: State) -> tuple[Result, list[dict[str, Any]]]:
    """Quantize ``job.model`` in place.

    Args:
        job: model and settings.
        samples: (N, ...) float32 inputs of the first block.
        state: opened state directory; finished blocks in it are not computed again.

    Returns:
        The result, and one record per block and phase (errors, losses, seconds, peak memory in MB).

    Raises:
        NumericalError: NaN or Inf, with block and iteration.
        InputError: a weight that can't be quantized.
    """
    names = {module: name for name, module in job.model.named_modules()}
    job.model.requires_grad_(False)
    for block in job.reference:
        block.module.requires_grad_(False)
    samples = cached(samples, cache_device(samples, 3, job.device))
    result: Result = {}
    records: list[dict[str, Any]] = []
    for entry in state.entries:
        apply_entry(job, state, entry, result, records)
    phases: list[Phase] = [WeightPhase(job, names, samples)]
    if job.recipe.a_bits and not job.joint:
        phases.append(StepPhase(job, names, samples))
    for phase in phases:
        done = sum(entry["position"].startswith(f"{phase.name}/") for entry in state.entries)
        if done == len(job.blocks):
            continue
        carry = phase.start() if done == 0 else {k: cached(v, samples.device) for k, v in state.carry().items()}
        for index in range(done, len(job.blocks)):
            found, carry, record = _timed(phase, index, carry)
            result |= found
            records.append(record)
            tensors, facts = flatten(found)
            position = f"{phase.name}/{index:03d}"
            state.commit(position, tensors, carry, {"grids": facts, "record": record})
    return result, records


def apply_entry(job: Job, state: State, entry: dict[str, Any], result: Result, records: list[dict[str, Any]]) -> None:
    """Put a finished block's result back into the model."""
    found = unflatten(state.tensors(entry["position"]), entry["facts"]["grids"])
    apply(found, job.model, job.blocks)
    result |= found
    records.append(entry["facts"]["record"])


def _timed(phase: Phase, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
    """Run one block of a phase; add seconds and peak memory to its record and log it in one line."""
    on_gpu = phase.job.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(phase.job.device)
    start = time.perf_counter()
    found, carry, record = phase.block(index, carry)
    if on_gpu:
        torch.cuda.synchronize(phase.job.device)
    record["seconds"] = time.perf_counter() - start
    record["peak_mb"] = (
        torch.cuda.max_memory_allocated(phase.job.device) / 2**20
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    )
    numbers = " ".join(f"{key}={value:.4g}" for key, value in record.items() if isinstance(value, float))
    log.info("%s %d/%d %s: %s", phase.name, index + 1, len(phase.job.blocks), record["block"], numbers)
    return found, carry, record
