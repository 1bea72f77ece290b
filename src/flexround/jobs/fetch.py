"""Fetch one pinned source, the only job that uses the network; what was put there by hand is verified alike."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.fetch", parser())
