"""Quantize one run: reconstruct block by block, write integer codes, steps and zero points."""

import argparse
import dataclasses
import json
import logging

import torch
from safetensors.numpy import load_file

from flexround import imports
from flexround.errors import InputError
from flexround.io import artifacts, resume
from flexround.jobs.runs import ReconstructJob
from flexround.machine import provenance
from flexround.machine.devices import lease
from flexround.quant import native
from flexround.quant.rounding import Rounding
from flexround.reconstruct import cache, engine, network
from flexround.reconstruct.preflight import preflight
from flexround.reconstruct.reconstruction import Reconstruction, checked
from flexround.reconstruct.state import State
from flexround.settings.params import refuse_unweighted
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def reconstruct(arguments: argparse.Namespace) -> None:
    """Quantize a run; ``jobs/command.py`` defines ``arguments``."""
    job = ReconstructJob.read(arguments.job)
    log.info("%s: %s", job.run, job.hyper.model_dump_json())
    weights, samples = provenance.inputs(job.weights, verify=False), provenance.inputs(job.samples)
    with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
        if device.type == "cpu" and not native.built():
            raise InputError("the native kernels can't be built: a C++ compiler is needed (CXX)")
        work, x = prepared(job, device)
        directory = arguments.state / str(job.run)
        gpu_bytes = cache.limit(device, arguments.gpu_cache_mb, arguments.jobs_per_gpu)
        if arguments.preflight:
            forecast = preflight(work, x, gpu_bytes)
            log.info("%s: %s", job.run, json.dumps(dataclasses.asdict(forecast)))
            return
        with State(directory, resume.fingerprint(device, job.identity, weights | samples)).opened() as state:
            records = engine.reconstruct(work, x, state, gpu_bytes)
            arguments.confirm()  # while the finished work is still saved: an edit may be reverted
            for clause in engine.left(work, records):
                log.warning("%s: %s", job.run, clause)
            facts = {
                "place": str(job.out),
                "run": vars(job.run),
                "recipe": job.recipe.model_dump(mode="json"),
                "rounding": job.rounding,
                "hyper": job.hyper.model_dump(mode="json"),
                "hyper_sources": job.hyper_sources,
                "inputs": weights | samples,
            }
            companions = artifacts.copy_existing(job.weights, job.out, protocol.COMPANIONS)
            state.publish(job.out, companions, **facts)
            record = {"blocks": records, "environment": provenance.environment(device)}
            artifacts.write_formatted(job.out / "record.json", record)


def prepared(job: ReconstructJob, device: torch.device) -> tuple[Reconstruction, torch.Tensor]:
    """Return the reconstruction's network and settings, and the inputs of its first block."""
    recipe, run = job.recipe, job.run
    rounding = checked(imports.load(job.rounding), job.rounding)
    if rounding.regularizer is not Rounding.regularizer:
        refuse_unweighted(job.hyper, job.hyper_sources, job.rounding)
    task = protocol.build(job.task)
    model, blocks, weights = network.to_quantize(job.checkpoint, task.head, job.weights, recipe.preprocess, device)
    samples = task.inputs(load_file(job.samples / "samples.safetensors"), job.weights)
    if job.hyper.mask_padding:
        samples = samples.trimmed()
    work = Reconstruction(
        model=model,
        blocks=blocks,
        weights=weights,
        recipe=recipe,
        hyper=job.hyper,
        rounding=rounding,
        seed_parts=(run.task, run.checkpoint, run.recipe, run.seed),
        device=device,
        mask=samples.mask,
    )
    return work, samples.x
