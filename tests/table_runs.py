"""Made-up evaluated runs and a made-up table of them, for the tests of tables."""

import csv
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from flexround.io import artifacts
from flexround.jobs.tables import settings_of
from flexround.metrics import of
from flexround.results import cells, evaluated, frames, paper_numbers, sample_sizes, table_csv
from flexround.results.cells import Scope
from flexround.results.claims.verdicts import Judgement
from flexround.settings.layout import PARAMS, Run
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan
from flexround.settings.schema import Recipe, ScaleFacts
from flexround.settings.tables import Table
from flexround.settings.validation import read_yaml, validate

loaded = functools.cache(load_params)  # the settings of a shipped scale, read once for all tests of a process
FILES = [PARAMS / f"tables/table{number:02d}.yaml" for number in range(1, 25)]  # the paper's
SPECS = {path.stem: validate(Table, read_yaml(path), str(path)) for path in FILES}
OF_RUNS = {name: table for name, table in SPECS.items() if table.groups}
SETTINGS = {table.number: table for table in SPECS.values() if table.settings}
METRICS = ("top1", "top5")
RECIPES = {name: Recipe(setting="B", rounding=name, w_bits=4) for name in ("weak", "strong", "third")}
RECIPES |= {"bare": Recipe(), "full": Recipe()}
METHODS = ("Nothing", "Full-precision", "B + Weak", "B + Strong", "B + Third_100%")
ROWS = [
    {"recipe": recipe, "method": method, "bits": "4/32"}
    for recipe, method in zip(("bare", "full", "weak", "strong", "third"), METHODS, strict=True)
]
TABLE = Table(  # two reference rows and a group of three, one column with two metrics
    number=99,
    label="tab:test",
    caption=r"Accuracy (\%) of ``X''.",
    descriptive=("Method", r"\# Bits (W/A)"),
    columns=[{"name": "Net_18", "task": "imagenet", "checkpoint": "net", "metrics": METRICS}],
    groups=[{"compare": False, "rows": ROWS[:2]}, {"rows": ROWS[2:]}],
    tolerance={"top1": 0.3, "top5": 0.3},
)


def hits(count: int, total: int = 1000) -> np.ndarray:
    """Return uint8 scores of which the first ``count`` are right."""
    return (np.arange(total) < count).astype(np.uint8)


Q_W8A8 = {"full-precision": hits(990), "q-adaround-w8a8": hits(800), "q-flexround-w8a8": hits(850)}  # of several tables


def scale(comparable: bool = False) -> ScaleFacts:
    """Return what outputs say of a scale."""
    return ScaleFacts(name="big" if comparable else "mini", description="a test", comparable=comparable)


def scope(root: Path, seeds: int = 1) -> Scope:
    """Return the scope of the made-up recipes' runs at the mini scale."""
    return Scope("mini", RECIPES, seeds, root)


def numbers(table: Table, value: float = 70.0) -> dict[paper_numbers.Key, float]:
    """Return the same published value for each cell of the table."""
    return {cell.key: value for cell in cells.collect(table, scope(Path("nowhere")))}


def write(root: Path, recipe: str, scores: np.ndarray, seed: int = 0, name: str = "mini", **changes: object) -> Path:
    """Write one evaluated run whose two metrics have the same scores, and return its directory."""
    return write_run(root, Run(name, "imagenet", "net", recipe, seed), scores, METRICS, **changes)


def write_run(root: Path, run: Run, scores: np.ndarray, metrics: Sequence[str], /, **changes: object) -> Path:
    """Write one evaluated run whose metrics have the same scores, and return its directory."""
    return write_arrays(root, run, dict.fromkeys(metrics, scores), **changes)


def write_arrays(
    root: Path, run: Run, scores: Mapping[str, np.ndarray], /, kind: str = "scores", **changes: object
) -> Path:
    """Write one evaluated run, given the scores of each metric, which may be stored as something else."""
    percent = {name: 100.0 * values.astype(np.float64) for name, values in scores.items()}
    content = {
        "format": artifacts.FORMAT,
        "run": dataclasses.asdict(run),
        "metrics": {name: float(values.mean()) for name, values in percent.items()},
        "stderr": {name: float(values.std(ddof=1)) / len(values) ** 0.5 for name, values in percent.items()},
        "n_examples": {name: len(values) for name, values in percent.items()},
        "higher_is_better": {name: of(name).higher_is_better for name in percent},
    }
    directory = evaluated.directory(run, root)
    directory.mkdir(parents=True)
    save_file({f"{kind}/{name}": values for name, values in scores.items()}, directory / evaluated.PREDICTIONS)
    content["predictions"] = {"sha256": artifacts.sha256(directory / evaluated.PREDICTIONS)}
    (directory / evaluated.METRICS).write_text(json.dumps(content | changes))
    return directory


def fill(root: Path, table: Table, scores: Mapping[str, np.ndarray]) -> str:
    """Write every run of a shipped table, the scores by recipe, and return its CSV at the mini scale."""
    runs: dict[Run, list[str]] = {}
    for cell in table.cells():
        runs.setdefault(Run("mini", cell.task, cell.checkpoint, cell.row.recipe, 0), []).extend(cell.metrics)
    for run, metrics in runs.items():
        write_run(root, run, scores[run.recipe], metrics)
    found = cells.collect(table, Scope("mini", dict.fromkeys(scores, Recipe()), 1, root))
    return frames.text(table_csv.of_cells(found, paper_numbers.load(), table, scale()))


def make(root: Path, comparable: bool = False, seeds: int = 1, value: float = 70.0, table: Table = TABLE) -> str:
    """Return the CSV of a table from the runs under ``root``."""
    found = cells.collect(table, Scope(scale(comparable).name, RECIPES, seeds, root))
    return frames.text(table_csv.of_cells(found, numbers(table, value), table, scale(comparable)))


def entry(text: str, recipe: str, metric: str = "top1") -> dict[str, str]:
    """Return the line of a recipe and metric."""
    return next(e for e in csv.DictReader(text.splitlines()) if (e["recipe"], e["metric"]) == (recipe, metric))


def complete(root: Path, name: str = "mini") -> None:
    """Write every run of the table: of 1000 examples, strong gets 40 more than weak; third is far behind."""
    for recipe, count in (("bare", 500), ("full", 900), ("weak", 700), ("strong", 740), ("third", 100)):
        write(root, recipe, hits(count), name=name)


def claims_csv(text: str) -> str:
    """Return lines of ``claims.csv`` of which some columns are given, of the claim ``s1-learnable`` if none is."""
    lines = csv.DictReader(text.splitlines())
    return frames.text(frames.made(({"claim": "s1-learnable"} | line for line in lines), Judgement._fields))


def figure7(params: Params, root: Path = Path("nowhere")) -> tuple[list[cells.Cell], dict[paper_numbers.Key, float]]:
    """Return the cells and published numbers of figure 7 at a scale."""
    return sample_sizes.collect(sample_sizes.of(Plan(params)), params.scale.name, root)


def settings_csv(number: int, params: Params) -> str:
    """Return the CSV of a shipped table of settings."""
    table = params.tables[number]
    return frames.text(
        table_csv.of_settings(settings_of(Plan(params), table), paper_numbers.load(), table, params.scale)
    )
