"""The job that passes or stops a full-precision network."""

from pathlib import Path

from flexround.jobs.jobfile import MeasuredJob, Plan, Planned, network
from flexround.settings import layout
from flexround.settings.schema import Gate


class GateJob(MeasuredJob):
    """Pass or stop a full-precision network."""

    gate: Gate
    weights: Path


def resolve(plan: Plan, task: str, checkpoint: str) -> Planned:
    """Plan the gate of a network; on purpose without the code, so that no edit throws networks away."""
    scale, rule = plan.scale.name, plan.params.gate(task, checkpoint)
    facts = network(plan, task, checkpoint, evaluated=True)
    facts["task"] = facts["task"].model_copy(update={"options": facts["task"].options | rule.options})
    job = GateJob(
        **facts,
        gate=rule.model_dump(include=set(Gate.model_fields)),
        weights=layout.checkpoint_dir(scale, task, checkpoint),
        data=layout.data_dir(scale, task),
        out=layout.gate_file(scale, task, checkpoint),
    )
    return Planned(job, [job.weights, job.data], code=None)
