"""Make one table: CSV, LaTeX and HTML from the evaluated runs of a scale, or from its settings, and print it."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.tabulate", parser())
