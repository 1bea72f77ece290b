"""Judge the paper's claims by the evaluated runs of a scale, as far as they are there, and list the paper's errata."""

import argparse
import csv
import itertools
import sys
from collections import Counter
from pathlib import Path

from flexround.artifacts import write_text
from flexround.errors import SettingsError
from flexround.results import cells, published, sample_sizes
from flexround.results.claims import errata, specs, verdicts
from flexround.results.render import claims_page
from flexround.settings.load import Params, load_params
from flexround.stages import cli


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales (mini), or a path to one")
    arguments.add_argument("--seeds", type=int, help="seeds of a complete cell; the scale's own number if not given")
    arguments.add_argument(
        "--evaluated", type=Path, default=Path("results"), help="directory with SCALE/evaluated (results)"
    )
    arguments.add_argument("--out", type=Path, help="directory for verdicts.csv, .html and errata.csv (results/SCALE)")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Write the three files and print how many comparisons of each claim hold.

    Raises:
        SettingsError: a wrong claim, or a number of seeds below one.
        InputError: an evaluated run that can't be used.
    """
    params = load_params(arguments.scale)
    seeds = params.scale.seeds if arguments.seeds is None else arguments.seeds
    if seeds < 1:
        raise SettingsError(f"--seeds {seeds}: give at least 1")
    spec, tables = specs.load(), _tables(params, seeds, arguments.evaluated)
    paper = errata.printed(itertools.chain(*tables.values()), published.load(), published.load_bold())
    usable = errata.without_copies(paper)
    places = {name: verdicts.Place(of_table, usable) for name, of_table in tables.items()}
    figure, at = params.figures.sample_size, params.scale.figures
    of_figure = sample_sizes.collect(
        figure,
        published.load_figure7(),
        params.scale.name,
        at.sample_sizes,
        at.sample_size_seeds,
        arguments.evaluated,
    )
    comparisons = verdicts.compare(spec.claims, places | {f"figure {figure.number}": verdicts.Place(*of_figure)})
    text = verdicts.to_csv(comparisons)
    found = errata.to_csv(errata.find(paper, comparisons, spec.examples))
    out = arguments.out or Path("results") / params.scale.name
    write_text(out / "claims.csv", text)
    write_text(out / "errata.csv", found)
    write_text(out / "claims.html", claims_page.render(text, found, spec.claims, params.scale))
    sys.stdout.write(_summary(text))


def _tables(params: Params, seeds: int, root: Path) -> dict[str, list[cells.Cell]]:
    """Return the cells of every table of runs, by its name in the claims."""
    tables = [table for table in params.tables.values() if table.groups]
    recipes, scale = params.recipes.recipes, params.scale.name
    return {f"table {table.number}": cells.collect(table, recipes, scale, seeds, root) for table in tables}


def _summary(text: str) -> str:
    """Return a line per claim: how many of its comparisons have each verdict."""
    counts: dict[str, Counter[str]] = {}
    for entry in csv.DictReader(text.splitlines()):
        counts.setdefault(entry["claim"], Counter())[entry["verdict"]] += 1
    width = max(map(len, counts))
    lines = [f"{'':{width}}  {'  '.join(verdicts.VERDICTS)}"]
    for name, of_claim in counts.items():
        numbers = "  ".join(f"{of_claim[verdict]:>{len(verdict)}}" for verdict in verdicts.VERDICTS)
        lines.append(f"{name:{width}}  {numbers}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cli.main(run, parser())
