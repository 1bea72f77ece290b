"""Where every cell of the tables comes from: its runs, each described once however many cells it has."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexround.results.grid import Entry
from flexround.results.render import jinja, run_facts, words
from flexround.results.render.overview import Standing
from flexround.results.render.run_facts import Section
from flexround.settings.layout import Run, evaluated_dir
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.settings.tables import Setting, Table

NAMES = ("section", "method", "bits", "column", "metric")  # of a cell: they stand in its title
LAYOUT = ("table", "row", "group", "best")
COLUMNS = [name for name in Entry._fields if name not in (*NAMES, *LAYOUT)]


def provenance(root: Path, plan: Plan, standings: Sequence[Standing], own: str | None = None) -> dict[str, Any]:
    """Return where every cell of tables comes from, as ``root``/results and ``root``/logs tell, for the page's script.

    ``own`` is the user's file whose rows are among the tables.

    Returns:
        ``columns``: [key, words] of what is told of a cell; ``cells``: by sheet, [title, values of these columns,
        numbers of runs]; ``runs``: a list of [name, [[title, number of a section], ...]]; ``sections``: HTML, see
        :mod:`flexround.results.render.run_facts`. Equal sections stand there once: versions, data and settings are the
        same for hundreds of runs.
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
                        make = [("Run", {"not evaluated; to make it": run_facts.command(root, plan, run, own)})]
                        described[name] = run_facts.sections(root, plan, run, own) if runs else make
            what = words.listed(entry.section, entry.method, entry.bits, entry.column, words.of(entry.metric))
            told = [jinja.as_cell(getattr(entry, column)).text for column in COLUMNS]
            cells[sheet] = [f"{s.table.title}: {what}", told, names]
    numbers = {name: number for number, name in enumerate(described)}
    html = vars(jinja.HTML.get_template("marks.html").module)["told"]
    sections: dict[str, int] = {}

    def section(title: str, facts: Any) -> list[Any]:
        return [title, sections.setdefault(html(facts, title).strip(), len(sections))]

    return {
        "columns": [[name, words.of(name)] for name in COLUMNS],
        "cells": {sheet: [*told, [numbers[name] for name in names]] for sheet, (*told, names) in cells.items()},
        "runs": [[name, [section(*each) for each in facts]] for name, facts in described.items()],
        "sections": list(sections),
    }


def evaluated(entry: Entry, root: Path) -> list[Run]:
    """Return the runs that a cell is the median of: the first ``n_seeds`` that are evaluated."""
    count = entry.n_seeds or 0
    files = (root / evaluated_dir(entry.run)).parent.glob("seed*/metrics.json") if count else ()
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
