"""Where every cell of the tables comes from: everything that is recorded about its runs, in sections for a reader."""

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.results.grid import Entry
from flexround.results.render import jinja, job_costs, words
from flexround.results.render.jinja import as_cell
from flexround.results.render.overview import Standing
from flexround.results.table_csv import number
from flexround.settings import layout, user_rows
from flexround.settings.layout import Run
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.settings.tables import Setting, Table

Section = tuple[str, Any]  # a title, and facts: a dict, or a list of rows of which the first is the header
LOG_LINES = 12
LOGGED = re.compile(r"\d\d:\d\d:\d\d (.*)")  # what our stages write; the clock is left out
OF_METRICS = ("metrics", "stderr", "heldout")  # hold values of metrics
RESULT = ("metrics", "stderr", "n_examples", "protocol")  # of metrics.json
NOT_SHOWN = ("files", "inputs", "place")  # of manifests: hashes, which have a section of their own, and paths
DIGITS = 4  # significant ones, of errors, seconds and megabytes
SETTING_DIGITS = 6  # of what is neither that nor a value of a metric
BLOCK = {
    "block": "block",
    "phase": "phase",
    "iterations": "iterations",
    "error_rtn": "error, nearest",
    "error_soft": "error, soft",
    "error_hard": "error, hard",
    "seconds": "seconds",
    "peak_mb": "peak MB",
}
ERRORS = ("error_rtn", "error_soft", "error_hard")
NAMES = ("section", "method", "bits", "column", "metric")  # of a cell: they stand in its title
LAYOUT = ("table", "row", "group", "best")
COLUMNS = [name for name in Entry._fields if name not in (*NAMES, *LAYOUT)]


def provenance(root: Path, plan: Plan, standings: Sequence[Standing], own: str | None = None) -> dict[str, Any]:
    """Return where every cell of tables comes from, as ``root``/results and ``root``/logs tell, for the page's script.

    ``own`` is the user's file whose rows are among the tables.

    Returns:
        ``columns``: [key, words] of what is told of a cell; ``cells``: by sheet, [title, values of these columns,
        numbers of runs]; ``runs``: a list of [name, [[title, number of a section], ...]]; ``sections``: HTML, see
        :func:`sections`. Equal sections stand there once: versions, data and settings are the same for hundreds of
        runs.
    """
    described: dict[str, list[Section]] = {}
    cells = {}
    for s in standings:
        for place, (entry, sheet) in enumerate(s.sheets.items()):
            if s.table.settings:
                names = [f"{s.table.place}, setting {place + 1}"]
                described[names[0]] = [("Setting", _setting(s.table, s.table.settings[place], plan))]
            else:
                runs = evaluated(entry, root)
                names = [str(run) for run in runs or [entry.run]]
                for name, run in zip(names, runs or [entry.run], strict=True):
                    if name not in described:
                        make = [("Run", {"not evaluated; to make it": command(root, plan, run, own)})]
                        described[name] = sections(root, plan, run, own) if runs else make
            what = words.listed(entry.section, entry.method, entry.bits, entry.column, words.of(entry.metric))
            told = [as_cell(getattr(entry, column)).text for column in COLUMNS]
            cells[sheet] = [f"{s.table.title}: {what}", told, names]
    numbers = {name: number for number, name in enumerate(described)}
    html = vars(jinja.HTML.get_template("marks.html").module)["told"]
    stored: dict[str, int] = {}

    def section(title: str, facts: Any) -> list[Any]:
        return [title, stored.setdefault(html(facts, title).strip(), len(stored))]

    return {
        "columns": [[name, words.of(name)] for name in COLUMNS],
        "cells": {sheet: [*told, [numbers[name] for name in names]] for sheet, (*told, names) in cells.items()},
        "runs": [[name, [section(*each) for each in facts]] for name, facts in described.items()],
        "sections": list(stored),
    }


def evaluated(entry: Entry, root: Path) -> list[Run]:
    """Return the runs that a cell is the median of: the first ``n_seeds`` that are evaluated."""
    count = int(entry.n_seeds or 0)
    files = (root / layout.evaluated_dir(entry.run)).parent.glob("seed*/metrics.json") if count else ()
    seeds = sorted(int(path.parent.name.removeprefix("seed")) for path in files)
    return [dataclasses.replace(entry.run, seed=seed) for seed in seeds[:count]]


def _setting(table: Table, setting: Setting, plan: Plan) -> dict[str, str]:
    """Return which setting of the pipeline a cell of a settings table shows, and where that comes from."""
    task = setting.task or table.tasks[0]
    facts = {"read": setting.setting, "task": task, "checkpoints": ", ".join(setting.checkpoints)}
    if setting.recipe:
        sources = hyper(plan.params, Run("", task, setting.checkpoints[0], setting.recipe, 0))[1]
        facts |= {"recipe": setting.recipe, "source": sources[setting.setting.partition(".")[2]]}
    return facts


def sections(root: Path, plan: Plan, run: Run, own: str | None = None) -> list[Section]:
    """Return what ``root``/results and ``root``/logs record about an evaluated run; what isn't there is left out.

    ``own`` is the user's file that is among the settings.

    Raises:
        InputError: a file that isn't what it should be.
    """
    evaluated, quantized = (root / of(run) for of in (layout.evaluated_dir, layout.quantized_dir))
    weights = root / layout.checkpoint_dir(run.scale, run.task, run.checkpoint)
    directories = job_costs.directories(plan, run)
    samples = [root / place for place in directories if job_costs.stage(place) == "calibrate"]
    try:
        metrics, record = artifacts.read_json(evaluated / "metrics.json"), _optional(quantized / "record.json")
        manifest = _manifest([quantized])
        recorded: list[Section] = [
            ("Run", {**vars(run), "make it again": command(root, plan, run, own)}),
            ("Result", {key: metrics[key] for key in RESULT if metrics.get(key)}),
            ("Recipe", _recipe(manifest)),
            ("Settings and where they come from", _settings(manifest)),
            ("Blocks", _blocks(record)),
            ("Calibration samples", _manifest(samples)),
            ("Full-precision network", _manifest([weights])),
            ("Gate", _optional(root / plan.gate(run))),
            ("Jobs: seconds, CPU seconds and peak MB", _costs(root, directories)),
            ("Versions of the evaluation", metrics.get("environment", {})),
            ("Versions of the reconstruction", record.get("environment", {})),
            ("sha256 of what is recorded", _hashes(root, directories)),
            *_logs(root, directories),
        ]
        return [(title, _rounded(facts)) for title, facts in recorded if facts]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{evaluated}: what is recorded of it isn't what its jobs write ({error!r}); make it again"
        ) from error


def _optional(path: Path) -> dict[str, Any]:
    return artifacts.read_json(path) if path.exists() else {}


def _manifest(directories: Iterable[Path]) -> dict[str, Any]:
    """Return what the manifests of some directories say, but for their files."""
    manifests = [_optional(directory / "manifest.json") for directory in directories]
    return {key: value for facts in manifests for key, value in facts.items() if key not in NOT_SHOWN}


def command(root: Path, plan: Plan, run: Run, own: str | None = None) -> str:
    """Return how the run is computed again from a clone; a recipe that the settings lack is of a file of the user's."""
    known = run.recipe in plan.params.recipes.recipes
    scale = shlex.quote(f"scale={user_rows.given_as(run.scale, root)}")
    config = scale + (f" {shlex.quote(f'own={own}')}" if own else "" if known else " own=FILE")
    return f"snakemake --cores all {layout.evaluated_dir(run)}/metrics.json --config {config}"


def _recipe(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of a quantized network, and among which it was selected."""
    facts = {key: value for key, value in manifest.get("recipe", {}).items() if value not in (None, [], {})}
    return facts | {key: manifest[key] for key in ("rounding", "selected") if key in manifest}


def _settings(manifest: dict[str, Any]) -> list[list[Any]]:
    """Return each effective hyper-parameter, first what it means, with its source."""
    sources = manifest.get("hyper_sources", {})
    hyper = sorted(manifest.get("hyper", {}).items())
    rows = [[words.of(key), key, value, sources.get(key, "")] for key, value in hyper]
    return [["what", "setting", "value", "source"], *rows] if rows else []


def _blocks(record: dict[str, Any]) -> list[list[Any]]:
    """Return error, seconds and memory of each block; a bar behind an error is its part of the largest."""
    blocks = record.get("blocks", [])
    largest = max((block.get(key) or 0.0 for block in blocks for key in ERRORS), default=0.0)
    rows = []
    for block in blocks:
        cells = {key: as_cell(_short(block.get(key))) for key in BLOCK}
        for key in (key for key in ERRORS if block.get(key) and largest):
            cells[key] = cells[key]._replace(share=round(100 * block[key] / largest))
        rows.append(list(cells.values()))
    return [list(BLOCK.values()), *rows] if rows else []


def _short(value: Any) -> Any:
    """Return a float with few digits, anything else as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _rounded(facts: Any, of_metrics: bool = False) -> Any:
    """Return facts in which values of metrics have the decimals of the tables, and others no floating-point error."""
    if isinstance(facts, dict):
        return {key: _rounded(value, of_metrics or key in OF_METRICS) for key, value in facts.items()}
    if not isinstance(facts, float):
        return facts
    return number(facts) if of_metrics else float(f"{facts:.{SETTING_DIGITS}g}")


def _costs(root: Path, directories: list[str]) -> list[list[Any]]:
    """Return what each job behind the run took; jobs that others share are among them."""
    costs = {directory: job_costs.cost(root, directory) for directory in directories}
    rows = [[job_costs.stage(place), place, *map(_short, cost)] for place, cost in costs.items() if cost]
    return [["stage", "result", "seconds", "CPU seconds", "peak MB"], *rows] if rows else []


def _hashes(root: Path, directories: list[str]) -> dict[str, str]:
    """Return the sha256 of each job's manifest, which lists those of its files, of the gate and of the metrics."""
    paths = [place + name for place in directories for name in ("/manifest.json", ".json", "/metrics.json")]
    return {path: artifacts.sha256(root / path) for path in paths if (root / path).exists()}


def _logs(root: Path, directories: list[str]) -> Iterator[Section]:
    """Yield the last lines that the run's own two jobs logged."""
    for directory in directories[-2:]:
        path = Path("logs") / Path(directory).relative_to("results").with_name(Path(directory).name + ".log")
        if (root / path).exists() and job_costs.stage(directory) in ("reconstruct", "evaluate"):
            text = (root / path).read_text(errors="replace")  # whatever a job printed
            lines = [logged[1] for line in text.splitlines() if (logged := LOGGED.match(line))]
            yield f"End of {path}", "\n".join(lines[-LOG_LINES:])
