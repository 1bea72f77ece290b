"""Evaluate one run: metrics, counts and standard errors as JSON, per-example scores beside it."""

from flexround.jobs import command

if __name__ == "__main__":
    command.main("flexround.stages.evaluate", command.parser(__doc__))
