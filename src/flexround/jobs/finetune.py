"""The job that makes a full-precision network."""

from pathlib import Path
from typing import Any

from pydantic import Field

from flexround.jobs.jobfile import NetworkJob, Plan, Planned, network, network_code
from flexround.settings import layout
from flexround.settings.sources import Source


class FinetuneJob(NetworkJob):
    """Make a full-precision network: import it, train it, or both."""

    explained = frozenset({"origins"})
    train: dict[str, Any] | None = Field(description="settings that the task reads; none: the weights as they come")
    origins: dict[str, Source] = Field(
        description="the pinned sources it is made from; their records say what they hold"
    )
    sources: Path = Field(description="directory of all sources")
    data: Path | None
    pretrained: Path | None = Field(description="directory of the network that it starts from")


def resolve(plan: Plan, task: str, checkpoint: str) -> Planned:
    """Plan the network of a task and a checkpoint."""
    settings, made_from = plan.params.checkpoint(checkpoint), plan.origins(task, checkpoint)
    job = FinetuneJob(
        **network(plan, task, checkpoint),
        train=plan.params.train(task, checkpoint),
        origins={name: plan.params.sources[name] for name in settings.sources},
        sources=layout.SOURCES,
        data=made_from.get("data"),
        pretrained=made_from.get("pretrained"),
        out=layout.checkpoint_dir(plan.scale.name, task, checkpoint),
    )
    last = (settings.finish.function,) if settings.finish else ()
    return Planned(job, made_from.values(), (*network_code(plan, task, checkpoint), *last))
