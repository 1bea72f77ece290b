"""Sum up the tables of a scale in one small JSON: what dvc metrics show and dvc metrics diff read."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.summary", parser())
