"""Compare every result of a scale with its manifest: name what is wrong, and which tables and figures it touches.

So is the chain: an output says where it belongs and what it was made of, a table has the values of its evaluations.
"""

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.io.artifacts import read_json, sha256
from flexround.regress import compare
from flexround.results import cells, evaluated
from flexround.results.cells import Scope
from flexround.results.evaluated import METRICS, PREDICTIONS
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan
from flexround.tools import cli

KINDS = ("data", "checkpoints", "calibration", "quantized", "evaluated")
LISTS = ("manifest.json", METRICS)  # hold the sha256 of the files beside them
UNLISTED = {*LISTS, "record.json", ".snakemake_timestamp"}  # what a run and Snakemake say of it
FAILED = 1

parser = functools.partial(cli.parser, __doc__)


def run(arguments: argparse.Namespace) -> None:
    """Check the results below the working directory and print a line for each wrong file; any ends it with 1.

    Raises:
        InputError: there are no results.
    """
    plan = Plan(load_params(arguments.scale))
    root = Path("results") / plan.scale.name
    files = [file for kind in KINDS for file in sorted((root / kind).rglob("*")) if file.is_file()]
    if not files:
        raise InputError(f"{root}: holds no results; make them (snakemake --cores all) or fetch them (make pull)")
    serves = served(plan)
    listed, problems = _read(file for file in files if file.name in LISTS)
    problems += _compare(listed)
    wrong = {file for file, _ in problems}
    evaluations = [file for file in files if file.name == METRICS and not {file, file.with_name(PREDICTIONS)} & wrong]
    problems += _recompute(evaluations)
    wrong = {file for file, _ in problems}
    lists = [file for file in files if file.name in LISTS] + sorted(root.glob("gates/*/*.json"))
    problems += _broken(file for file in lists if file not in wrong)
    problems += _untrue(root, plan.params)
    problems += [(file, "no manifest lists it") for file in files if file not in listed and file.name not in UNLISTED]
    for path, problem in problems:
        places = map(str, (path, *path.parents))
        touched = next((serves[place] for place in places if place in serves), [path.stem] * (path.parent == root))
        sys.stdout.write(f"{path}: {problem}; touches {', '.join(touched) or 'nothing'}\n")
    sys.stdout.writelines(f"{line}\n" for line in _summary(root, listed, serves))
    if problems:
        sys.stdout.write(
            f"{len(problems)} wrong, missing or unlisted: delete their directories, then pull or make them\n"
        )
        sys.exit(FAILED)


def _read(lists: Iterator[Path]) -> tuple[dict[Path, str], list[tuple[Path, str]]]:
    """Return the sha256 of every file that a manifest or an evaluation lists, and the lists that can't be read."""
    listed: dict[Path, str] = {}
    problems = []
    for path in lists:
        try:
            if path.name == METRICS:
                listed[path.with_name(PREDICTIONS)] = evaluated.read(path).predictions.sha256
            else:
                listed |= {path.parent / name: facts["sha256"] for name, facts in read_json(path)["files"].items()}
        except InputError as error:
            problems.append((path, _reason(error, path)))
        except (AttributeError, KeyError, TypeError):
            problems.append((path, "damaged: it lists no files"))
    return listed, problems


def _recompute(evaluations: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the evaluations whose values aren't what their predictions give."""
    for path in evaluations:
        try:
            evaluated.compare(path, evaluated.read(path))
        except InputError as error:
            yield path, _reason(error, path)


def _broken(outputs: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the manifests, evaluations and gates that belong elsewhere, or of whose inputs others lie there now."""
    for path in outputs:
        content, place = read_json(path), path.parent if path.name in LISTS else path
        if content.get("place") != str(place):
            yield path, f"says that its place is {content.get('place')}"
        for origin, hashes in content.get("inputs", {}).items():
            if _hashes(Path(origin)) not in (None, hashes):
                yield path, f"was made of another {origin} than lies there now"


def _hashes(origin: Path) -> Any:
    """Return the hashes of a directory or source as they are recorded now; None if it isn't here, or is damaged."""
    try:
        content = read_json(origin if origin.suffix == ".json" else origin / "manifest.json")
    except InputError:
        return None
    return content.get("sha256", content.get("files"))


def _untrue(root: Path, params: Params) -> Iterator[tuple[Path, str]]:
    """Yield the tables of which a cell isn't what its evaluations give; a wrong evaluation is named itself."""
    for table in params.tables.values():
        path, seeds = root / f"{table.name}.csv", dict[str, int]()
        if not table.groups or not path.exists():
            continue
        for entry in compare.read_entries(path):
            seeds[entry.task] = max(seeds.get(entry.task, 1), entry.n_seeds or 0)
        with contextlib.suppress(InputError):
            collected = cells.collect(table, Scope(params.scale.name, params.recipes.recipes, seeds, root.parent))
            found, printed = compare.of_cells(collected), compare.read_table(path)
            wrong = [key for key in printed.keys() & found if printed[key].value and printed[key] != found[key]]
            for key in sorted(wrong)[:1]:
                values = f"{printed[key].value}, its evaluations give {found[key].value or 'nothing'}"
                yield path, f"{key.metric} of row {key.row}, {key.column} is {values}"


def _reason(error: InputError, path: Path) -> str:
    """Return what an error says of a file, without its name and the way out, which the last line gives for all."""
    return str(error).removeprefix(f"{path}: ").partition("; ")[0]


def _compare(listed: dict[Path, str]) -> Iterator[tuple[Path, str]]:
    """Yield the files that are missing or have another sha256."""
    for file, digest in listed.items():
        if not file.exists():
            yield file, "missing, but its manifest lists it"
        elif sha256(file) != digest:
            yield file, "its sha256 is not the one in its manifest"


def _summary(root: Path, listed: dict[Path, str], serves: dict[str, list[str]]) -> Iterator[str]:
    """Yield what is here for no table, how much was checked, and what the tables need that isn't here."""
    for directory in sorted({str(file.parent) for file in listed} - set(serves)):
        yield f"{directory}: no table or figure reads it"
    size = sum(file.stat().st_size for file in listed if file.exists())
    yield f"{root}: {len(listed)} files checked, {size / 1e6:.0f} MB"
    absent = [directory for directory in serves if not Path(directory).exists()]
    if absent:
        wanting = sorted({name for directory in absent for name in serves[directory]}, key=lambda n: (n[0], len(n), n))
        yield f"not here: {len(absent)} of {len(serves)} directories, for {', '.join(wanting)}"


def served(plan: Plan) -> dict[str, list[str]]:
    """Return directory or gate -> ``table3``, ``figure7``, ... that are made from it, of what the scale can make."""
    figures = plan.complete_figures()
    shown = [(plan.params.tables[number].name, plan.table_runs(number), True) for number in plan.complete_tables()]
    shown += [(f"figure{n}", plan.figure_runs(n), n not in plan.params.figures.shifts) for n in figures]
    products: dict[str, list[str]] = {}
    for name, runs, measured in shown:
        for directory in sorted({directory for run in runs for directory in _directories(plan, run, measured)}):
            products.setdefault(directory, []).append(name)
    return products


def _directories(plan: Plan, run: Run, measured: bool) -> Iterator[str]:
    """Yield everything that a run is made from, and itself, which is an evaluation if it is ``measured``."""
    recipe = plan.params.recipe(run.recipe)
    yield layout.data_dir(run.scale, run.task)
    yield from _network(plan, run.task, run.checkpoint)
    if measured:
        yield layout.evaluated_dir(run)
    if recipe.quantized:
        yield layout.quantized_dir(run)
        yield plan.gate(run)
    if recipe.setting:
        yield plan.samples_dir(run)
    for name in recipe.select:
        yield from _directories(plan, dataclasses.replace(run, recipe=name), measured=False)


def _network(plan: Plan, task: str, checkpoint: str) -> Iterator[str]:
    """Yield a full-precision network, the data it is trained on, and those of the network it starts from."""
    yield layout.checkpoint_dir(plan.scale.name, task, checkpoint)
    origins = plan.origins(task, checkpoint)
    if "data" in origins:
        yield origins["data"]
    if "pretrained" in origins:
        yield from _network(plan, plan.params.checkpoint(checkpoint).pretrain or "", checkpoint)


if __name__ == "__main__":
    cli.main(run, parser())
