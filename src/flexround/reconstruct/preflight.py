"""Forecast of a reconstruction's memory and time: its largest block runs for a moment; nothing is written."""

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor, nn

from flexround.reconstruct import cache, engine
from flexround.reconstruct.phases import WeightPhase
from flexround.reconstruct.reconstruction import Reconstruction

ITERATIONS = 3
FORWARDS = 2  # runs of a block over all samples: full-precision output, quantized output


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The forecast.

    Attributes:
        block: name of the largest block.
        peak_mb: most memory in use, caches excluded: of the GPU, else of the process.
        iteration_seconds: of one iteration on a batch of the real size.
        hours: of the whole job, as if all blocks were the largest.
        caches: where the activations will lie.
    """

    block: str
    peak_mb: float
    iteration_seconds: float
    hours: float
    caches: str


class _Rehearsal(WeightPhase):
    """Learns twice: first to warm up, then against the clock."""

    seconds = 0.0

    def _learn(self, *arguments: Any) -> tuple[dict[str, Any], set[nn.Parameter]]:
        super()._learn(*arguments)
        start = time.perf_counter()
        found = super()._learn(*arguments)
        self.seconds = time.perf_counter() - start  # the losses have been fetched: a GPU is done
        return found


def preflight(job: Reconstruction, samples: Tensor, gpu_bytes: int | None = None) -> Forecast:
    """Run the largest block on random activations, through all that is done to a block.

    Args:
        job: model and settings; a model in memory is of no use afterwards.
        samples: (N, ...) inputs of the first block.
        gpu_bytes: of a GPU's memory that caches may take; None for ``cache.limit``.
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
    """Return rows of what arrives at a block: samples, or random numbers in the place of activations."""
    if index == 0:
        return samples[:rows].to(job.device)
    row = engine.boundaries(job, samples)[2 * index]
    generator = job.generator("preflight", job.blocks[index].name)
    return torch.randn(rows, *row[1:], generator=generator).to(job.device)
