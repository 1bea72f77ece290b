"""What `make regress` compares with the reference, and the seeds that the reference's tolerances are made from."""

from flexround.regress import checked_runs


def get_regress_runs(wildcards):
    """Return the evaluations that are compared."""
    runs = checked_runs.load().runs(SCALE)
    return [layout.evaluated_dir(run) + "/metrics.json" for run in runs]


def get_spread_runs(wildcards):
    """Return the evaluations of all seeds of them, and of what is run for its spread alone."""
    chosen = checked_runs.load()
    runs = [
        run
        for member in chosen.members()
        for recipe in (*member.recipes, *member.spread)
        for run in PLAN.trials(member.task, member.checkpoint, recipe, chosen.seeds)
    ]
    return [layout.evaluated_dir(run) + "/metrics.json" for run in runs]


rule regress:
    input:
        get_regress_runs,


rule spread:
    input:
        get_spread_runs,
