"""The job that quantizes a network."""

from pathlib import Path

from pydantic import Field

from flexround.jobs.jobfile import NetworkJob, Plan, Planned, network, network_code
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.schema import Hyper, Recipe


class ReconstructJob(NetworkJob):
    """Quantize a network."""

    explained = frozenset({"hyper_sources"})
    run: Run
    recipe: Recipe
    rounding: str = Field(description="package.module:Class")
    hyper: Hyper
    hyper_sources: dict[str, str] = Field(description="where each hyper-parameter comes from")
    weights: Path
    samples: Path


def resolve(plan: Plan, run: Run) -> Planned:
    """Plan the reconstruction of a run."""
    plan.params.check_fit(run)
    recipe, (hyper, sources) = plan.params.recipe(run.recipe), plan.hyper(run)
    rounding = plan.params.rounding_target(recipe.rounding or "")
    job = ReconstructJob(
        **network(plan, run.task, run.checkpoint),
        run=run,
        recipe=recipe,
        rounding=rounding,
        hyper=hyper,
        hyper_sources=sources,
        weights=layout.checkpoint_dir(run.scale, run.task, run.checkpoint),
        samples=plan.samples_dir(run),
        out=layout.quantized_dir(run),
    )
    code = (*network_code(plan, run.task, run.checkpoint), rounding)
    return Planned(job, [job.weights, job.samples, plan.gate(run)], code)
