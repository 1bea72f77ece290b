"""Forecast a reconstruction's memory and time by briefly running its largest block; write no file."""

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor

from flexround.reconstruct import cache, engine
from flexround.reconstruct.phases import WeightPhase
from flexround.reconstruct.reconstruction import Reconstruction

ITERATIONS = 3
FORWARDS = 2  # runs of a block over all samples: full-precision output, quantized output


@dataclasses.dataclass(frozen=True)
class Forecast:
    """A forecast of memory and time.

    Attributes:
        block: name of the largest block.
        peak_mb: peak memory without caches: of the GPU, else of the process.
        iteration_seconds: seconds of one iteration on a batch of the real size.
        hours: of the whole job, if all blocks were as slow as the largest.
        caches: location of the activations.
    """

    block: str
    peak_mb: float
    iteration_seconds: float
    hours: float
    caches: str


class _Rehearsal(WeightPhase):
    """Learns twice: first to warm up, then to measure the time."""

    seconds = 0.0

    def _learn(self, *arguments: Any) -> dict[str, Any]:
        super()._learn(*arguments)
        start = time.perf_counter()
        found = super()._learn(*arguments)
        self.seconds = time.perf_counter() - start  # the losses are on the CPU, so the GPU has finished
        return found


def preflight(job: Reconstruction, samples: Tensor, gpu_bytes: int | None = None) -> Forecast:
    """Run all steps of a reconstruction on the largest block, with random activations.

    Args:
        job: model and settings; afterwards a model in memory is unusable.
        samples: (N, ...) inputs of the first block.
        gpu_bytes: bytes of GPU memory for caches; None for ``cache.limit``.
    """
    caches = engine.place_caches(job, samples, gpu_bytes)
    sizes = [sum(weight.numel() for weight in block.module.parameters()) for block in job.blocks]
    index = sizes.index(max(sizes))
    hyper = job.hyper
    job.model.requires_grad_(False)
    rows = min(len(samples), max(hyper.batch, hyper.a_init_samples if job.recipe.a_bits else 0))
    short = hyper.model_copy(update={"iters": ITERATIONS, "reconstruct_stem": True})
    mask = None if job.mask is None else job.mask[:rows]
    rehearsal = dataclasses.replace(job, hyper=short, mask=mask)
    store = cache.Store(job.device, getattr(torch, hyper.cache_dtype))
    x = store.copy(_inputs(job, samples, index, rows))
    phase = _Rehearsal(rehearsal, x, store)
    with job.weights.block(index, again=False):
        start = time.perf_counter()
        carry = phase.start()
        phase.full_precision(index, carry)
        engine.wait(job.device)
        forward_seconds = time.perf_counter() - start
        phase.learn(index, carry)
        engine.wait(job.device)
        fixed = time.perf_counter() - start - 2 * phase.seconds
    one = phase.seconds / ITERATIONS
    iterations = hyper.iters + (hyper.a_iters if job.recipe.a_bits and not job.joint else 0)
    passes = FORWARDS * forward_seconds * len(samples) / rows
    hours = len(job.blocks) * (fixed + iterations * one + passes) / 3600
    return Forecast(job.blocks[index].name, engine.peak_mb(job.device), one, hours, str(caches))


def _inputs(job: Reconstruction, samples: Tensor, index: int, rows: int) -> Tensor:
    """Return rows of a block's input: samples for the first block, else random numbers instead of activations."""
    if index == 0:
        return samples[:rows].to(job.device)
    row = engine.boundaries(job, samples)[2 * index]
    generator = job.generator("preflight", job.blocks[index].name)
    return torch.randn(rows, *row[1:], generator=generator).to(job.device)
