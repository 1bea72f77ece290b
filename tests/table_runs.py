"""Made-up evaluated runs and a made-up table of them, for the tests of tables."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from flexround.settings.layout import Run
from flexround.settings.load import validate
from flexround.settings.schema import Recipe, Scale, Table
from flexround.tables import cells, evaluated, published, tidy

EXAMPLES = 1000
RECIPES = {name: Recipe(setting="B", rounding=name, w_bits=4) for name in ("weak", "strong", "third")}
RECIPES |= {"bare": Recipe(), "full": Recipe()}
ROWS = {
    "bare": "Nothing",
    "full": "Full-precision",
    "weak": "B + Weak",
    "strong": "B + Strong",
    "third": "B + Third_100%",
}


def _table() -> Table:
    """Return a table of two reference rows and a group of three, one column with two metrics."""
    rows = [{"recipe": recipe, "method": method, "bits": "4/32"} for recipe, method in ROWS.items()]
    value = {
        "number": 99,
        "label": "tab:test",
        "caption": r"Accuracy (\%) of ``X''.",
        "descriptive": ["Method", r"\# Bits (W/A)"],
        "columns": [{"name": "Net_18", "task": "imagenet", "checkpoint": "net", "metrics": ["top1", "top5"]}],
        "groups": [{"compare": False, "rows": rows[:2]}, {"rows": rows[2:]}],
        "tolerance": {"top1": 0.3, "top5": 0.3},
    }
    return validate(Table, value, "test")


TABLE = _table()


def scale(comparable: bool = False) -> Scale:
    """Return a scale of which only what tables read is filled."""
    return Scale.model_construct(name="big" if comparable else "mini", comparable=comparable)


def numbers(table: Table, value: float = 70.0) -> dict[published.Key, float]:
    """Return the same published value for each cell of the table."""
    return {cell.key: value for cell in cells.collect(table, RECIPES, "none", 1, Path("nowhere"))}


def hits(count: int, total: int = EXAMPLES) -> np.ndarray:
    """Return uint8 scores of which the first ``count`` are right."""
    return (np.arange(total) < count).astype(np.uint8)


def write(root: Path, recipe: str, scores: np.ndarray, seed: int = 0, name: str = "mini", **changes: object) -> Path:
    """Write one evaluated run whose two metrics have the same scores, and return its directory."""
    run = Run(name, "imagenet", "net", recipe, seed)
    value = 100.0 * float(scores.mean())
    content = {
        "run": dataclasses.asdict(run),
        "metrics": {"top1": value, "top5": value},
        "stderr": {"top1": 1.4, "top5": 1.4},
        "n_examples": {metric: len(scores) for metric in ("top1", "top5")},
        "higher_is_better": {"top1": True, "top5": True},
    }
    directory = evaluated.directory(run, root)
    directory.mkdir(parents=True)
    (directory / "metrics.json").write_text(json.dumps(content | changes))
    save_file({"scores/top1": scores, "scores/top5": scores}, directory / "predictions.safetensors")
    return directory


def make(root: Path, comparable: bool = False, seeds: int = 1, value: float = 70.0, table: Table = TABLE) -> str:
    """Return the CSV of a table from the runs under ``root``."""
    found = cells.collect(table, RECIPES, scale(comparable).name, seeds, root)
    return tidy.to_csv(found, numbers(table, value), table, scale(comparable))


def entry(text: str, recipe: str, metric: str = "top1") -> dict[str, str]:
    """Return the line of a recipe and metric."""
    return next(e for e in csv.DictReader(text.splitlines()) if (e["recipe"], e["metric"]) == (recipe, metric))


def complete(root: Path, name: str = "mini") -> None:
    """Write every run of the table: of 1000 examples, strong gets 40 more than weak; third is far behind."""
    for recipe, count in (("bare", 500), ("full", 900), ("weak", 700), ("strong", 740), ("third", 100)):
        write(root, recipe, hits(count), name=name)
