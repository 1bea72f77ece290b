"""Draw one figure of the paper as PDF and PNG."""

from flexround.jobs import command

if __name__ == "__main__":
    command.main("flexround.stages.figure", command.parser(__doc__))
