"""Draw one figure of the paper as PDF and PNG."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.figure", parser())
