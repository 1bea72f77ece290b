"""Compare every result of a scale with its manifest: name wrong files, and the tables and figures that use them.

The chain is checked, too: each output records its place and its inputs, and each table must match its evaluations.
"""

import argparse
import contextlib
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flexround.errors import FlexRoundError, InputError
from flexround.io.artifacts import damages, read_json
from flexround.results import cells, evaluated, frames, grid, paper_numbers, table_csv
from flexround.results.cells import Scope
from flexround.results.evaluated import METRICS, PREDICTIONS
from flexround.results.grid import Entry
from flexround.results.paper_numbers import Key
from flexround.results.render import html, latex
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan
from flexround.settings.tables import Table
from flexround.tools import cli

KINDS = ("data", "checkpoints", "calibration", "quantized", "evaluated")
LISTS = ("manifest.json", METRICS)  # hold the sha256 of the files beside them
UNLISTED = {*LISTS, "record.json"}  # files that no manifest lists
CONTEST = {"status", "best", "rival", "lead", "lead_stderr", "p_value"}  # depend on other seeds or rows
FAILED = 1

parser = functools.partial(cli.parser, __doc__)


def run(arguments: argparse.Namespace) -> None:
    """Check the results below the working directory; print each wrong file; any wrong file gives exit code 1."""
    plan = Plan(load_params(arguments.scale))
    root = Path("results") / plan.scale.name
    found = (file for kind in KINDS for file in sorted((root / kind).rglob("*")) if file.is_file())
    files = [file for file in found if not file.name.startswith(".")]  # files of Snakemake and of killed jobs
    if not any(root.glob("*")):
        raise InputError(f"{root}: holds no results; make them (snakemake --cores all) or fetch them (make pull)")
    serves = served(plan)
    listed, problems = set[Path](), list[tuple[Path, str]]()
    for path in [file for file in files if file.name in LISTS] + sorted(root.glob("gates/*/*.json")):
        try:
            problems += _damages(path, listed)
            problems += _broken(path)
        except InputError as error:
            problems.append(_problem(error))
        except (FlexRoundError, OSError, LookupError, TypeError, ValueError) as error:
            problems.append((path, " ".join(f"damaged ({type(error).__name__}: {error})".split())))
    problems += untrue(root, plan.params)
    problems += [(file, "no manifest lists it") for file in files if file not in listed and file.name not in UNLISTED]
    for path, problem in problems:
        places = map(str, (path, *path.parents))
        touched = next((serves[place] for place in places if place in serves), [path.stem] * (path.parent == root))
        sys.stdout.write(f"{path}: {problem}; touches {', '.join(touched) or 'nothing'}\n")
    sys.stdout.writelines(f"{line}\n" for line in outdated(plan, listed))
    size = sum(file.stat().st_size for file in listed if file.exists())
    sys.stdout.write(f"{root}: {len(listed)} files checked, {size / 1e6:.0f} MB\n")
    if problems:
        sys.stdout.write(
            f"{len(problems)} wrong, missing or unlisted: delete their directories, then pull or make them\n"
        )
        sys.exit(FAILED)


def _problem(error: InputError) -> tuple[Path, str]:
    """Return an error's file and problem, without the remedy, which the last line of the output gives."""
    place, _, reason = str(error).partition(": ")
    return Path(place), reason.partition("; ")[0]


def _damages(path: Path, listed: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the problems with the files of a manifest, or with an evaluation; add the files to ``listed``."""
    if path.name == METRICS:
        listed.add(path.with_name(PREDICTIONS))
        yield from ((path, difference) for difference in evaluated.differences(path))
    elif path.name in LISTS:
        manifest = read_json(path)
        yield from map(_problem, damages(path.parent, manifest))
        listed.update(path.parent / name for name in manifest["files"])


def _broken(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a problem if a manifest, an evaluation or a gate belongs elsewhere, or its inputs have changed."""
    content, place = read_json(path), path.parent if path.name in LISTS else path
    if content.get("place") != str(place):
        yield path, f"says that its place is {content.get('place')}"
    for origin, hashes in content.get("inputs", {}).items():
        if _hashes(Path(origin)) not in (None, hashes):
            yield path, f"was made from another {origin} than the present one"


def outdated(plan: Plan, files: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each directory of ``files`` whose network was quantized with other settings than today's."""
    for directory in sorted({file.parent for file in files}):
        content = read_json(directory / "manifest.json") if (directory / "manifest.json").exists() else {}
        with contextlib.suppress(FlexRoundError):  # today's settings have no such run
            run = Run(**content["run"]) if "hyper" in content else None
            if run and content["hyper"] != plan.hyper(run)[0].model_dump(mode="json"):
                yield f"{directory}: made with other settings than today's; snakemake -n names all that depends on them"


def _hashes(origin: Path) -> Any:
    """Return the recorded hashes of a directory or source; None if it is missing or damaged."""
    try:
        content = read_json(origin if origin.suffix == ".json" else origin / "manifest.json")
    except InputError:
        return None
    return content.get("sha256", content.get("files"))


def untrue(root: Path, params: Params) -> Iterator[tuple[Path, str]]:
    """Yield the tables below ``results/SCALE`` that don't match their evaluations, each with one cell.

    Also yield LaTeX and HTML that don't match their CSV. A wrong evaluation can't check a table. The user's own rows
    and the contests with such rows are not recomputed.
    """
    published = paper_numbers.load() if params.scale.shows.published else {}
    for table in params.tables.values():
        path, known = root / f"{table.name}.csv", {*range(1, len(table.rows()) + 1)}
        if not path.exists():
            continue
        printed = {entry.key: entry for entry in frames.load(path, Entry)}
        rows = {key.row for key in printed} if table.groups else set[int]()
        with contextlib.suppress(InputError, OSError, ValueError):
            found = _made(table, params, printed.values(), root.parent, published) if table.groups else {}
            whole = rows <= known and all(entry.value and entry.status != "partial" for entry in printed.values())
            for key, field, values in itertools.islice(_differences(printed, found, whole), 1):
                yield path, f"{field} of {key.metric} of row {key.row}, {key.column} is {values}"
        for suffix, render in {".tex": latex.render, ".html": html.render}.items() if rows == known else ():
            file = path.with_suffix(suffix)
            if file.exists() and file.read_bytes() != render(grid.load(path), table, params.scale).encode():
                yield file, f"isn't what {path.name} gives"


def _made(
    table: Table, params: Params, printed: Iterable[Entry], results: Path, published: Mapping[Key, float]
) -> dict[Key, Entry]:
    """Recompute the entries of a table from its evaluations, with as many seeds as the table has."""
    seeds = dict[str, int]()
    for entry in printed:
        seeds[entry.task] = max(seeds.get(entry.task, 1), int(entry.n_seeds or 0))
    collected = cells.collect(table, Scope(params.scale.name, params.recipes.recipes, seeds, results))
    found = table_csv.of_cells(collected, published, table, params.scale)
    return {entry.key: entry for entry in frames.lines(found, Entry)}


def _differences(
    printed: Mapping[Key, Entry], found: Mapping[Key, Entry], whole: bool
) -> Iterator[tuple[Key, str, str]]:
    """Yield each differing field of a table; if the table isn't ``whole``, status and contests are not compared."""
    names = [name for name in Entry._fields if whole or name not in CONTEST]
    for key, entry in found.items():
        if key not in printed:
            yield key, "value", f"missing, its evaluations give {entry.value or 'nothing'}"
        elif printed[key].value and entry.value:
            for name in names:
                one, other = getattr(printed[key], name), getattr(entry, name)
                if one != other:
                    yield key, name, f"{one}, its evaluations give {'nothing' if other == '' else other}"


def served(plan: Plan) -> dict[str, list[str]]:
    """Return directory or gate -> the tables and figures of the scale that need it, such as ``table3``, ``figure7``."""
    products: dict[str, list[str]] = {}
    for name, runs, measured in plan.shown(plan.complete_tables(), plan.complete_figures()):
        for place in sorted({output.place for run in runs for output in plan.outputs(run, measured)}):
            products.setdefault(place, []).append(name)
    return products


if __name__ == "__main__":
    cli.main(run, parser())
