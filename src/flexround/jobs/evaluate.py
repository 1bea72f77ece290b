"""Evaluate one run: metrics, counts and standard errors as JSON, per-example scores beside it."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.evaluate", parser())
