"""Judge the paper's claims by the evaluated runs of a scale, and list the paper's errata."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.claims", parser())
