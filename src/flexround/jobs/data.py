"""Prepare a task's data: check the raw files, write what the later jobs read."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.data", parser())
