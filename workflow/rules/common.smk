"""Input functions of the rules; everything with logic in it is in flexround.settings.plan and flexround.jobs.resolve."""

import threading


# Used with --sdm apptainer alone (docs/cluster.md).
container: "container/flexround.sif"


def cancel_timers():
    """Cancel what Snakemake's limit of jobs per timespan leaves behind: its process would wait for these timers."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


onsuccess:
    cancel_timers()


onerror:
    cancel_timers()


def get_run(wildcards):
    """Return the run that the wildcards name."""
    return layout.Run(
        wildcards.scale,
        wildcards.task,
        wildcards.checkpoint,
        wildcards.recipe,
        int(wildcards.seed),
    )


def get_resource(stage, name):
    """Return a function of the wildcards: what a stage asks of the machine, at least what its network needs."""
    return lambda wildcards: getattr(
        PLAN.resources(stage, wildcards.get("checkpoint")), name
    )


# A run whose fields are wildcards: gives the rules the same paths as the jobs.
ANY = layout.Run("{scale}", "{task}", "{checkpoint}", "{recipe}", "{seed}")
