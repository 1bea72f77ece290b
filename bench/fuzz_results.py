"""Kinds of :mod:`fuzz`: what the suite writes itself and reads again."""

import contextlib
import functools
import hashlib
import json
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import report_case
import table_runs
import torch
import toy
import yaml
from fuzz import Kind
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from flexround import artifacts, unfinished
from flexround.jobs import jobfile
from flexround.jobs.jobfile import EvaluateJob, FinetuneJob, GateJob, ReconstructJob
from flexround.jobs.resolve import Jobs
from flexround.jobs.shown import ClaimsJob, FigureJob, Shown, TabulateJob
from flexround.library import quantized
from flexround.library.quantize import quantize
from flexround.models import build
from flexround.reconstruct.state import State
from flexround.results import evaluated
from flexround.results.render import run_facts, table_layout
from flexround.settings.layout import Run
from flexround.settings.schema import Task
from flexround.stages import calibrate, reconstruct
from flexround.tasks import protocol
from flexround.tools import stored, verify
from synthetic import files

RUN = Run("mini", "imagenet", "resnet18-brecq", "q-flexround-w4a4", 0)
plan = functools.cache(lambda: report_case.PLAN)


def task(kind: str, **options: Any) -> Any:
    """Return a task of the mini scale."""
    return protocol.build(Task(module=f"flexround.{kind}", options=options))


def digits() -> Any:
    """Return the task of images."""
    return task("mini.tasks.digits:Digits", train=20, val=20)


def data(kind: str, **options: Any) -> Kind:
    """Return the kind of a task's data, as the calibrate stage reads it."""
    settings = {"module": f"flexround.{kind}", "options": options}
    job = {"format": 1, "scale": "s", "name": "n", "task": settings}

    def read(directory: Path) -> Any:
        out = directory / "samples"
        paths = {"samples": 8, "seed": 0, "data": str(directory), "out": str(out)}
        artifacts.write_json(directory / "job.json", job | paths)
        calibrate.run(Namespace(job=directory / "job.json"))
        return (out / "samples.safetensors").read_bytes()

    def make(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as sources:
            files.glue(Path(sources) / "glue", "rte", 24, 12)
            task(kind, **options).prepare(directory, Path(sources))

    return Kind(f"data: {kind}", make, read, pinned=True)


def calibrated(directory: Path) -> None:
    """Write calibration samples."""
    save_file({"indices": np.arange(8), "images": np.zeros((8, 4, 4, 3), np.uint8)}, directory / "samples.safetensors")
    artifacts.write_manifest(directory, ["samples.safetensors"], samples=8)


def read_calibrated(directory: Path) -> Any:
    """Read calibration samples as the reconstruction does."""
    artifacts.read_manifest(directory)
    return reconstruct._load_samples(directory, 8)


def weights(directory: Path) -> None:
    """Write a full-precision network."""
    model = build.architecture(plan().params.checkpoint("resnet18-brecq"), digits().head)
    save_tensors(model.state_dict(), directory / "model.safetensors")
    artifacts.write_manifest(directory, ["model.safetensors"], task="imagenet")


def network(directory: Path) -> None:
    """Write a quantized network."""
    model = toy.model()
    made = quantize(model, toy.samples(32), "q-rtn-w4a8", iters=1, a_iters=1, batch=8, progress=False)
    made.save(directory)


def state(directory: Path) -> None:
    """Write a state of a job that was stopped."""
    with contextlib.suppress(KeyboardInterrupt), State(directory / "run", "f" * 16).opened() as kept:
        tensors = {"weight/a:codes": torch.arange(-8, 8).to(torch.int8), "weight/a:step": torch.ones(1)}
        facts = {"grids": {"weight/a": {"qmin": -8, "qmax": 7}}, "record": {"seconds": 1.0}}
        for block in range(3):
            kept.commit(f"weights/{block:03}", tensors, {"fp": torch.randn(4, 3)}, facts)
        raise KeyboardInterrupt


def read_state(directory: Path) -> Any:
    """Take over what a stopped job left; a damaged state is dropped with a message, and all is done again."""
    found = []
    with contextlib.suppress(KeyboardInterrupt), State(directory / "run", "f" * 16).opened() as kept:
        found = [(entry["position"], entry["facts"], kept.tensors(entry)) for entry in kept.entries]
        raise KeyboardInterrupt
    if not found:
        raise SystemExit("begun again")
    return found


def part(directory: Path) -> None:
    """Write a part of an unfinished job."""
    with contextlib.suppress(KeyboardInterrupt), unfinished.kept(directory / "kept"):
        unfinished.save("epoch", {"model": {"a": torch.arange(5)}, "optimizer": {"b": torch.ones(3)}}, done=3)
        raise KeyboardInterrupt


def read_part(directory: Path) -> Any:
    """Read it."""
    with contextlib.suppress(KeyboardInterrupt), unfinished.kept(directory / "kept"):
        found = unfinished.load("epoch")
        raise KeyboardInterrupt
    return found


def evaluation(directory: Path) -> None:
    """Write a run's evaluation."""
    path = table_runs.write(directory, "weak", table_runs.hits(700)) / "metrics.json"
    artifacts.write_formatted(path, json.loads(path.read_text()))


def read_evaluation(directory: Path) -> Any:
    """Read it as tables do."""
    trials = evaluated.read_run(Run("mini", "imagenet", "net", "weak", 0), directory, table_runs.METRICS)
    if not trials:
        raise SystemExit("missing")
    return {
        name: (trial.value, trial.stderr, trial.n_examples, trial.higher_is_better, trial.scores())
        for name, trial in trials.items()
    }


def jobs(directory: Path) -> None:
    """Write job files of all kinds."""
    with contextlib.chdir(directory):
        resolved, shown = Jobs(plan()), Shown(plan())
        for kind, path in {
            "finetune": resolved.finetune("squad", "bert-base"),
            "gate": resolved.gate("imagenet", "resnet18-brecq"),
            "reconstruct": resolved.reconstruct(RUN),
            "evaluate": resolved.evaluate(RUN),
            "tabulate": shown.tabulate(3),
            "figure": shown.figure(7),
            "claims": shown.claims(),
        }.items():
            (directory / f"{kind}.json").write_bytes(Path(path["job"]).read_bytes())


JOBS = {
    "finetune": FinetuneJob,
    "gate": GateJob,
    "reconstruct": ReconstructJob,
    "evaluate": EvaluateJob,
    "tabulate": TabulateJob,
    "figure": FigureJob,
    "claims": ClaimsJob,
}


def locked(directory: Path) -> None:
    """Write a ``dvc.lock`` with a file and a directory in a cache."""
    cache = directory / ".dvc/cache/files/md5"

    def add(content: bytes, suffix: str = "") -> str:
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
        (cache / md5[:2]).mkdir(parents=True, exist_ok=True)
        (cache / md5[:2] / md5[2:]).write_bytes(content)
        return md5

    listing = [{"md5": add(name.encode()), "relpath": name} for name in ("a", "b/c")]
    outs = [
        {"path": "results/x", "hash": "md5", "md5": add(json.dumps(listing).encode(), ".dir"), "size": 4, "nfiles": 2},
        {"path": "results/y.csv", "hash": "md5", "md5": add(b"y"), "size": 1},
    ]
    stages = {"shared": {"cmd": "true", "outs": outs[:1]}, "glue": {"cmd": "true", "outs": outs[1:]}}
    (directory / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def read_locked(directory: Path) -> None:
    """Compare the cache with it."""
    with contextlib.chdir(directory):
        stored.run(Namespace(cache=Path(".dvc/cache"), entries=[]))


def verified(directory: Path) -> None:
    """Compare results with their manifests; any difference ends it."""
    with contextlib.chdir(directory):
        verify.run(Namespace(scale="mini"))


def results(directory: Path) -> None:
    """Write data, an evaluation and calibration samples where the scale has them."""
    digits().prepare(directory / "results/mini/data/imagenet", directory)
    evaluation(directory / "results")


def project(directory: Path) -> None:
    """Write everything that the report reads."""
    report_case.fill_root(directory)


def read_facts(directory: Path) -> Any:
    """Return what the report says of a run."""
    return run_facts.sections(directory, plan(), RUN)


def read_table(directory: Path) -> Any:
    """Return a table's CSV as the renderings see it."""
    return table_layout.parse(artifacts.read_text(directory / "table3.csv"))


def table(directory: Path) -> None:
    """Write a table's CSV."""
    (directory / "table3.csv").write_text(report_case.table3(directory / "root"))


KINDS = [
    data("mini.tasks.digits:Digits", train=20, val=20),
    data("tasks.glue.task:Glue", name="rte", max_length=40),
    Kind("calibration samples", calibrated, read_calibrated, pinned=True),
    Kind(
        "full-precision network",
        weights,
        lambda d: build.full_precision(plan().params.checkpoint("resnet18-brecq"), digits().head, d).state_dict(),
        pinned=True,
    ),
    Kind(
        "quantized network",
        network,
        lambda d: quantized.load(d, toy.model()).model.state_dict(),
        pinned=True,
        files=("manifest.json", "*.safetensors"),
    ),
    Kind("state of a reconstruction", state, read_state, pinned=True, files=("*.json", "*.safetensors")),
    Kind("part of an unfinished job", part, read_part, pinned=True),
    Kind("evaluation", evaluation, read_evaluation, pinned=True),
    *(
        Kind(
            f"job file: {name}",
            jobs,
            functools.partial(lambda d, n: jobfile.read(JOBS[n], d / f"{n}.json"), n=name),
            files=(f"{name}.json",),
        )
        for name in JOBS
    ),
    Kind("dvc.lock and cache", locked, read_locked, files=("dvc.lock", ".dvc/*")),
    Kind("results with manifests", results, verified, files=("results/*",)),
    Kind(
        "record, gate, log of a run",
        project,
        read_facts,
        files=(
            "results/mini/[qcg]*",
            "logs/*",
            "results/mini/evaluated/imagenet/resnet18-brecq/q-flexround-w4a4/*.json",
        ),
    ),
    Kind("CSV of a table", table, read_table, files=("table3.csv",)),
]
