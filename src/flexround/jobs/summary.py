"""The job that sums up the tables of a scale."""

from pathlib import Path

from flexround.jobs.jobfile import Job, Plan, Planned


class SummaryJob(Job):
    """Sum up the tables."""

    tables: tuple[Path, ...]


def resolve(plan: Plan) -> Planned:
    """Plan the summary of all tables that the scale can make."""
    out = f"results/{plan.scale.name}"
    tables = [f"{out}/{plan.params.tables[number].name}.csv" for number in plan.complete_tables()]
    return Planned(SummaryJob(tables=tables, out=f"{out}/metrics.json"), tables)
