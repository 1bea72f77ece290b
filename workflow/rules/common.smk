"""Input functions of the rules; everything with logic in it is in flexround.settings.plan."""


def get_run(wildcards, **fixed):
    """Return the run that the wildcards name."""
    return layout.Run(
        wildcards.scale,
        wildcards.task,
        wildcards.checkpoint,
        fixed.get("recipe", wildcards.get("recipe")),
        int(fixed.get("seed", wildcards.get("seed", 0))),
    )


def get_samples(wildcards):
    """Return the manifest of a run's calibration samples."""
    return PLAN.samples_dir(get_run(wildcards)) + "/manifest.json"


def get_gate(wildcards):
    """Return the full-precision evaluation that a run's checkpoint must have passed."""
    return layout.evaluated_dir(PLAN.gate(get_run(wildcards))) + "/metrics.json"


def get_network(wildcards):
    """Return the manifest of what a run evaluates: the quantized network, or the checkpoint itself."""
    run = get_run(wildcards)
    if PLAN.params.recipe(run.recipe).quantized:
        return layout.quantized_dir(run) + "/manifest.json"
    return layout.checkpoint_dir(run.scale, run.checkpoint) + "/manifest.json"


def get_table_runs(wildcards):
    """Return the evaluations a table is made of."""
    return [
        layout.evaluated_dir(run) + "/metrics.json"
        for run in PLAN.table_runs(int(wildcards.table))
    ]


def get_figure_runs(wildcards):
    """Return what a figure is drawn from."""
    number = int(wildcards.figure)
    runs = PLAN.figure_runs(number)
    if number not in PLAN.params.figures.shifts:
        return [layout.evaluated_dir(run) + "/metrics.json" for run in runs]
    weights = {
        layout.checkpoint_dir(run.scale, run.checkpoint) + "/manifest.json"
        for run in runs
    }
    return [layout.quantized_dir(run) + "/manifest.json" for run in runs] + sorted(
        weights
    )


def get_origin(wildcards):
    """Return what a checkpoint is made from: the data it is trained on here, or its pinned source."""
    settings = PLAN.params.checkpoint(wildcards.checkpoint)
    if settings.source:
        return f"results/sources/{settings.source}.json"
    return layout.data_dir(wildcards.scale, settings.task) + "/manifest.json"


# A run whose fields are wildcards: gives the rules the same paths as the stages.
ANY = layout.Run("{scale}", "{task}", "{checkpoint}", "{recipe}", "{seed}")
