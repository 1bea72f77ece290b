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


def get_data_sources(wildcards):
    """Return the pinned sources of a task's data."""
    names = PLAN.scale.tasks[wildcards.task].sources
    return [f"results/sources/{name}.json" for name in names]


def get_weights(wildcards):
    """Return the manifest of a run's full-precision network."""
    directory = layout.checkpoint_dir(
        wildcards.scale, wildcards.task, wildcards.checkpoint
    )
    return directory + "/manifest.json"


def get_candidates(wildcards):
    """Return the manifest of each network that a recipe with ``select`` chooses from."""
    names = PLAN.params.recipe(wildcards.recipe).select
    runs = [get_run(wildcards, recipe=name) for name in names]
    return [layout.quantized_dir(run) + "/manifest.json" for run in runs]


def get_reconstruction_code(wildcards):
    """Return the hashes of the code of a reconstruction: the stage's, the model's, the rounding's."""
    run = get_run(wildcards)
    targets = PLAN.model_targets(run.task, run.checkpoint)
    return PLAN.code("reconstruct", *targets, *PLAN.rounding_targets(run))


def get_training_options(wildcards, input):
    """Return the options that name what a full-precision network is made from, as far as it is made from it."""
    given = [name for name in ("data", "pretrained") if name in input.keys()]
    return " ".join(f"--{name} {Path(input[name]).parent}" for name in given)


def get_network(wildcards):
    """Return the manifest of what a run evaluates: the quantized network, or the checkpoint itself."""
    run = get_run(wildcards)
    if PLAN.params.recipe(run.recipe).quantized:
        return layout.quantized_dir(run) + "/manifest.json"
    return get_weights(wildcards)


def get_table_runs(wildcards):
    """Return the evaluations a table is made of."""
    return [
        layout.evaluated_dir(run) + "/metrics.json"
        for run in PLAN.table_runs(int(wildcards.table))
    ]


def get_table_launcher(wildcards):
    """Return how the stage of a table is started: with the user's file where that adds rows to the table."""
    owned = any(row.table == int(wildcards.table) for row in OWN.rows)
    return "python -m" + (' flexround.own "$FLEXROUND_OWN"' if owned else "")


def get_figure_runs(wildcards):
    """Return what a figure is drawn from."""
    number = int(wildcards.figure)
    runs = PLAN.figure_runs(number)
    if number not in PLAN.params.figures.shifts:
        return [layout.evaluated_dir(run) + "/metrics.json" for run in runs]
    weights = {
        layout.checkpoint_dir(run.scale, run.task, run.checkpoint) + "/manifest.json"
        for run in runs
    }
    return [layout.quantized_dir(run) + "/manifest.json" for run in runs] + sorted(
        weights
    )


def get_claim_runs(wildcards):
    """Return the evaluations that the paper's claims are judged by: those of all complete tables and of figure 7."""
    number = PLAN.params.figures.sample_size.number
    runs = [run for table in PLAN.complete_tables() for run in PLAN.table_runs(table)]
    runs += PLAN.figure_runs(number) if number in PLAN.complete_figures() else []
    return [layout.evaluated_dir(run) + "/metrics.json" for run in dict.fromkeys(runs)]


def get_origins(wildcards):
    """Return what a full-precision network is made from, by name."""
    return PLAN.origins(wildcards.task, wildcards.checkpoint)


# A run whose fields are wildcards: gives the rules the same paths as the stages.
ANY = layout.Run("{scale}", "{task}", "{checkpoint}", "{recipe}", "{seed}")
