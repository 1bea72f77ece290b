"""The job that evaluates a network."""

import re
from pathlib import Path

from flexround.jobs.jobfile import MeasuredJob, Plan, Planned, network, network_code
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.schema import Recipe

FUNCTION = re.compile(r"!function ([\w.]+)\.(\w+)")  # a tag of lm-eval's YAML


class EvaluateJob(MeasuredJob):
    """Evaluate a network, quantized or not."""

    run: Run
    recipe: Recipe
    network: Path


def resolve(plan: Plan, run: Run) -> Planned:
    """Plan the evaluation of a run; files of its task count as code, and so do the functions that they name."""
    job = EvaluateJob(
        **network(plan, run.task, run.checkpoint, evaluated=True),
        run=run,
        recipe=plan.params.recipe(run.recipe),
        network=plan.network_dir(run),
        data=layout.data_dir(run.scale, run.task),
        out=layout.evaluated_dir(run),
    )
    files = tuple(plan.task_files(run.task))
    named = [":".join(function) for path in files for function in FUNCTION.findall((ROOT / path).read_text())]
    code = (*network_code(plan, run.task, run.checkpoint), *named)
    return Planned(job, [job.network, job.data], code, files)
