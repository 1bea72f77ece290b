"""The origin of the numbers: a sheet for each run with its cells, settings, errors, hashes and commands."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flexround.errors import SettingsError
from flexround.io import artifacts
from flexround.results.grid import Entry
from flexround.results.render import words
from flexround.results.render.html import told
from flexround.results.render.overview import Standing
from flexround.settings import layout, user_rows
from flexround.settings.layout import Run
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.settings.tables import Setting, Table

COMMAND = "To make it again"  # title of a sheet's commands, one for each seed
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
MACHINE = ("commit", "date", "device", "processor", "simd")  # keys of an evaluation's environment


class Sheet(NamedTuple):
    """The records of a run, for all of its seeds."""

    name: str
    cells: list[tuple[str, str, str]]  # for each cell: identifier on the page, place in its table, value with status
    sections: dict[str, Any]  # facts by title: a dict, or a list of rows with its header first


def sheets(root: Path, plan: Plan, standings: Sequence[Standing], own: str | None = None) -> list[Sheet]:
    """Return a sheet for each run or setting that tables show, from the records in ``root``/results.

    ``own`` is the user's file of own rows, which the tables include.
    """
    made: dict[str, Sheet] = {}
    for s in standings:
        for place, (entry, cell) in enumerate(s.sheets.items()):
            name = f"{s.table.place}, setting {place + 1}" if s.table.settings else sheet_of(entry)
            if name not in made:
                if s.table.settings:
                    facts = {"Setting": _setting(s.table, s.table.settings[place], plan)}
                else:
                    facts = sections(root, plan, entry.run, evaluated(entry, root), own)
                made[name] = Sheet(name, [], facts)
            what = words.listed(entry.section, entry.method, entry.bits, entry.column, words.of(entry.metric))
            said = f"{entry.value or words.absent(entry, '—')}; {told(entry)}"
            made[name].cells.append((cell, f"{s.table.title}: {what}", said))
    return list(made.values())


def sheet_of(entry: Entry) -> str:
    """Return the name of the sheet for a measured number."""
    return "/".join((entry.task, entry.checkpoint, entry.recipe))


def evaluated(entry: Entry, root: Path) -> list[Run]:
    """Return the runs behind a cell's median: the first ``n_seeds`` evaluated runs."""
    count = int(entry.n_seeds or 0)
    files = (root / layout.evaluated_dir(entry.run)).parent.glob("seed*/metrics.json") if count else ()
    seeds = sorted(int(path.parent.name.removeprefix("seed")) for path in files)
    return [dataclasses.replace(entry.run, seed=seed) for seed in seeds[:count]]


def _setting(table: Table, setting: Setting, plan: Plan) -> dict[str, str]:
    """Return the pipeline's setting that a cell of a settings table shows, with its source."""
    task = setting.task or table.tasks[0]
    facts = {"read": setting.setting, "task": task, "checkpoints": ", ".join(setting.checkpoints)}
    if setting.recipe:
        sources = hyper(plan.params, Run("", task, setting.checkpoints[0], setting.recipe, 0))[1]
        facts |= {"recipe": setting.recipe, "source": sources[setting.setting.partition(".")[2]]}
    return facts


def sections(root: Path, plan: Plan, first: Run, seeds: Sequence[Run], own: str | None = None) -> dict[str, Any]:
    """Return the records in ``root``/results about the evaluated seeds of a run; missing records are left out."""
    found: dict[str, Any] = {COMMAND: [command(root, plan, run, own) for run in seeds or [first]]}
    for run in seeds:
        quantized = root / layout.quantized_dir(run)
        manifest, record = (_optional(quantized / name) for name in ("manifest.json", "record.json"))
        if run == seeds[0]:
            found |= {"Recipe": _recipe(manifest), "Settings and where they come from": _settings(manifest)}
        of_seed = f", seed {run.seed}" if len(seeds) > 1 else ""
        environment = _optional(root / layout.evaluated_dir(run) / "metrics.json").get("environment", {})
        found[f"Machine and commit{of_seed}"] = {key: environment[key] for key in MACHINE if environment.get(key)}
        found[f"Errors of blocks{of_seed}"] = _blocks(record)
        found[f"sha256{of_seed}"] = _hashes(root, directories(plan, run))
    return {title: facts for title, facts in found.items() if facts}


def _optional(path: Path) -> dict[str, Any]:
    return artifacts.read_json(path) if path.exists() else {}


def command(root: Path, plan: Plan, run: Run, own: str | None = None) -> str:
    """Return the command that recomputes a run from a clone; a recipe unknown to the settings is the user's."""
    known = run.recipe in plan.params.recipes.recipes
    scale = shlex.quote(f"scale={user_rows.given_as(run.scale, root)}")
    config = scale + (f" {shlex.quote(f'own={own}')}" if own else "" if known else " own=FILE")
    return f"snakemake --cores all {layout.evaluated_dir(run)}/metrics.json --config {config}"


def _recipe(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of a quantized network, and the candidates from which it was selected."""
    facts = {key: value for key, value in manifest.get("recipe", {}).items() if value not in (None, [], {})}
    return facts | {key: manifest[key] for key in ("rounding", "selected") if key in manifest}


def _settings(manifest: dict[str, Any]) -> list[list[Any]]:
    """Return each effective hyper-parameter: meaning, key, value and source."""
    sources = manifest.get("hyper_sources", {})
    rows = [
        [words.of(key), key, value, sources.get(key, "")] for key, value in sorted(manifest.get("hyper", {}).items())
    ]
    return [["what", "setting", "value", "source"], *rows] if rows else []


def _blocks(record: dict[str, Any]) -> list[list[Any]]:
    """Return error, seconds and memory of each block, below a header."""
    rows = [[block.get(key, "") for key in BLOCK] for block in record.get("blocks", [])]
    return [list(BLOCK.values()), *rows] if rows else []


def _hashes(root: Path, places: list[str]) -> dict[str, str]:
    """Return the sha256 of each job's manifest (which lists its files' hashes), of the gate and of the metrics."""
    paths = [place + name for place in places for name in ("/manifest.json", ".json", "/metrics.json")]
    return {path: artifacts.sha256(root / path) for path in paths if (root / path).exists()}


def directories(plan: Plan, run: Run) -> list[str]:
    """Return the distinct result directories of all jobs behind a run, in the order of the jobs.

    A gate's result is a file, listed without its suffix. A run unknown to the settings has only its evaluation.
    """
    try:
        made = list(plan.outputs(run, evaluated=True))
    except SettingsError:
        return [layout.evaluated_dir(run)]
    return list(dict.fromkeys(output.place.removesuffix(".json") for output in made))
