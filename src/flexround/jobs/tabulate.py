"""Make one table: CSV, LaTeX and HTML from the evaluated runs of a scale, or from its settings, and print it."""

from flexround.jobs import command

if __name__ == "__main__":
    command.main("flexround.stages.tabulate", command.parser(__doc__))
