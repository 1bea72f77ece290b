"""Input functions of the rules; everything with logic in it is in flexround.settings.plan and flexround.jobs.resolve."""

import threading
from pathlib import Path


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


def link_results():
    """Let results/SCALE be the local copies of a default storage provider, if there is one: job files say results/."""
    settings = workflow.storage_settings
    if settings is None or settings.default_storage_provider is None:
        return
    prefix = settings.default_storage_prefix.partition("://")[2]
    copies = Path(settings.local_storage_prefix, settings.default_storage_provider)
    for name in (SCALE, "sources"):
        link = Path("results", name)
        if link.is_dir() and not link.is_symlink():
            raise WorkflowError(
                f"{link}: move it away, with a storage provider its files lie there"
            )
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to((copies / prefix / link).resolve())


link_results()


def get_inputs(inputs):
    """Return inputs in which what is no result is marked as local: a storage provider has results alone."""
    return {
        name: path if str(path).startswith("results/") else local(path)
        for name, path in inputs.items()
    }


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
    """Return a function of the wildcards: what a job of a stage asks of the machine, more if it failed before."""
    return lambda wildcards, attempt: getattr(
        PLAN.resources(
            stage, wildcards.get("task"), wildcards.get("checkpoint"), attempt
        ),
        name,
    )


# A run whose fields are wildcards: gives the rules the same paths as the jobs.
ANY = layout.Run("{scale}", "{task}", "{checkpoint}", "{recipe}", "{seed}")
