"""Made-up evaluated runs and a made-up table of them, for the tests of tables."""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from flexround.settings.layout import PARAMS, Run
from flexround.settings.load import Params, read_yaml, validate
from flexround.settings.schema import Recipe, Scale, Table, Task, TrainRule
from flexround.tables import cells, evaluated, published, tidy

SPECS = {path.stem: validate(Table, read_yaml(path), str(path)) for path in sorted(PARAMS.glob("tables/table*.yaml"))}
OF_RUNS = {name: table for name, table in SPECS.items() if table.groups}
SETTINGS = {table.number: table for table in SPECS.values() if table.settings}
GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
MODELS = ("bert-base", "bert-large", "gpt-neo-125m", "gpt-neo-1.3b", "gpt-neo-2.7b")
EXAMPLES = 1000
METRICS = ("top1", "top5")
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
    return write_run(root, Run(name, "imagenet", "net", recipe, seed), scores, METRICS, **changes)


def write_run(root: Path, run: Run, scores: np.ndarray, metrics: Sequence[str], /, **changes: object) -> Path:
    """Write one evaluated run whose metrics have the same scores, and return its directory."""
    content = {
        "run": dataclasses.asdict(run),
        "metrics": dict.fromkeys(metrics, 100.0 * float(scores.mean())),
        "stderr": dict.fromkeys(metrics, 1.4),
        "n_examples": dict.fromkeys(metrics, len(scores)),
        "higher_is_better": dict.fromkeys(metrics, True),
    }
    directory = evaluated.directory(run, root)
    directory.mkdir(parents=True)
    (directory / "metrics.json").write_text(json.dumps(content | changes))
    save_file({f"scores/{metric}": scores for metric in metrics}, directory / "predictions.safetensors")
    return directory


def fill(root: Path, table: Table, scores: Mapping[str, np.ndarray]) -> str:
    """Write every run of a shipped table, the scores by recipe, and return its CSV at the mini scale."""
    for cell in table.cells():
        run = Run("mini", cell.task, cell.checkpoint, cell.row.recipe, 0)
        write_run(root, run, scores[cell.row.recipe], cell.metrics)
    found = cells.collect(table, dict.fromkeys(scores, Recipe()), "mini", 1, root)
    return tidy.to_csv(found, published.load(), table, scale())


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


def settings_params(
    train: Sequence[Mapping[str, object]] = (),
    options: Mapping[str, Mapping[str, int]] | None = None,
    without: str = "",
    comparable: bool = True,
) -> Params:
    """Return the settings of tables 13 and 14 as the paper prints them, changed by later rules and other options.

    Args:
        train: further rules, each with ``when`` and ``set``.
        options: other options of tasks.
        without: a task or checkpoint that the scale lacks.
        comparable: whether the scale's numbers are comparable.
    """
    rules = [
        {"when": {"task": "glue-*"}, "set": {"lr": 2e-5, "batch": 32, "epochs": 3, "weight_decay": 0.01}},
        {"when": {"task": "glue-*", "checkpoint": "gpt-neo-2.7b"}, "set": {"lr": 1e-5, "batch": 16}},
        {"when": {"task": "squad"}, "set": {"lr": 1e-4, "batch": 32, "epochs": 4}},
        *train,
    ]
    of_tasks: dict[str, Mapping[str, int]] = {f"glue-{name}": {"max_length": 128} for name in GLUE}
    of_tasks |= {"squad": {"max_length": 384, "doc_stride": 128}} | dict(options or {})
    tasks = {name: Task(module="a:B", options=dict(given)) for name, given in of_tasks.items() if name != without}
    made = Scale.model_construct(
        name="paper" if comparable else "mini",
        comparable=comparable,
        tasks=tasks,
        checkpoints=dict.fromkeys(name for name in MODELS if name != without),
        train=tuple(TrainRule.model_validate({"source": "a test"} | rule) for rule in rules),
    )
    return Params(made, None, None, {}, SETTINGS, None)  # type: ignore[arg-type]
