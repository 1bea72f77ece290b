"""Input functions of the rules; their logic is in flexround.settings.plan and flexround.jobs.resolve."""

import threading
from functools import cache
from pathlib import Path

from flexround.machine.seeding import derive
from flexround.regress import checked_runs


# Snakemake uses it only with --sdm apptainer (docs/run-at-scale.md).
container: "container/flexround.sif"


def cancel_timers():
    """Cancel leftover timers of Snakemake's limit of jobs per timespan: its process would wait for them."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


onsuccess:
    cancel_timers()


onerror:
    cancel_timers()


def link_results():
    """Link results/SCALE to the local copies of the default storage provider, if any: job files name results/."""
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


JOBS = {}  # output of a job -> the job
SHARED = {} if workflow.is_main_process else resolve.shared()


def get_inputs(stage, *arguments):
    """Return the results that a job reads."""
    job = resolve.job_or_exit(PLAN, stage, *arguments)
    JOBS[job.out] = job._replace(file=SHARED.get(job.out, job.file))
    return job.reads


def get_params(output):
    """Return a job's file, and the digest of the job and of all jobs before it: a changed digest reruns the job."""
    return {
        "job": lambda wildcards: JOBS[output.format(**wildcards)].file,
        "made_by": lambda wildcards: get_origin(output.format(**wildcards)),
    }


@cache
def get_origin(path):
    """Return a digest of a result's job and of all jobs before it, so that file times don't count."""
    places = map(str, (Path(path), *Path(path).parents))
    job = next((JOBS[place] for place in places if place in JOBS), None)
    return derive(job.file, *map(get_origin, job.reads)) if job else None


def get_run(wildcards):
    """Return the run that the wildcards name."""
    return layout.Run(
        wildcards.scale,
        wildcards.task,
        wildcards.checkpoint,
        wildcards.recipe,
        int(wildcards.seed),
    )


def get_resources(stage, *names):
    """Return the resources of a stage's jobs as functions of the wildcards; a retry gets more."""

    def asked(name):
        return lambda wildcards, attempt: getattr(
            PLAN.resources(
                stage, wildcards.get("task"), wildcards.get("checkpoint"), attempt
            ),
            name,
        )

    return {name: asked(name) for name in ("mem_mb", "runtime", *names)}


def get_gpu_resources(stage):
    """Return the resources of a stage that uses GPUs, as functions of the wildcards."""
    return {"jobs_per_gpu": PLAN.jobs_per_gpu} | get_resources(stage, "gpu", "gpu_mb")


def get_regress_runs(wildcards):
    """Return the metrics that `make regress` compares."""
    return [layout.evaluated_files(run)[0] for run in checked_runs.load().runs(SCALE)]


def get_table_labels(form):
    """Return a function from the wildcards to the labels of a table in Snakemake's report."""

    def labels(wildcards):
        tasks = [
            task.partition("-")[0]
            for task, _ in PLAN.params.tables[int(wildcards.table)].pairs()
        ]
        return {
            "table": wildcards.table.zfill(2),
            "tasks": ", ".join(dict.fromkeys(tasks)),
            "as": form,
        }

    return labels


def get_figure_labels(wildcards):
    """Return the labels of a figure in Snakemake's report."""
    title = PLAN.params.figures[int(wildcards.figure)].title
    return {"figure": wildcards.figure, "shows": title}


# A run with wildcards as fields, so that rules and jobs have the same paths.
ANY = layout.Run("{scale}", "{task}", "{checkpoint}", "{recipe}", "{seed}")


def of_claims(name, caption):
    """Return a file of the claims with its entry in Snakemake's report."""
    labels = {"file": Path(name).stem}
    return report(
        f"results/{{scale}}/{name}", caption=caption, category="Claims", labels=labels
    )
