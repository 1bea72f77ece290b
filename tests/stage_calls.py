"""Stages called in this process, as their command lines would."""


def call(module, **options):
    """Run a stage of the pipeline with ``--name=value`` for every option."""
    module.run(module.parser().parse_args([f"--{name}={value}" for name, value in options.items()]))
