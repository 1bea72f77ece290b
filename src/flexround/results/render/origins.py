"""Where every cell of the tables comes from: its runs, each described once however many cells it has."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexround.results.grid import Entry
from flexround.results.render import jinja, run_facts, words
from flexround.results.render.overview import Standing
from flexround.settings.layout import Run, evaluated_dir
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.settings.tables import Table

NAMES = ("section", "method", "bits", "column", "metric")  # of a cell: they stand in its title
LAYOUT = ("table", "row", "group", "best")


class Catalogue:
    """Runs by number, with the numbers of their sections; ``described`` and :attr:`sections` are what the page embeds.

    Sections are HTML. Equal ones stand there once: versions, data and settings are the same for hundreds of runs.
    """

    def __init__(self, root: Path, plan: Plan, own: str | None) -> None:
        self.root, self.plan, self.own = root, plan, own
        self.described: list[list[Any]] = []
        self._numbers: dict[Run, int] = {}
        self._sections: dict[str, int] = {}
        self._html = vars(jinja.HTML.get_template("marks.html").module)["told"]

    @property
    def sections(self) -> list[str]:
        """All sections in the order of their numbers."""
        return list(self._sections)

    def run(self, run: Run, is_evaluated: bool) -> int:
        """Return the number of a run; one that isn't evaluated says how to make it."""
        if run not in self._numbers:
            facts = [("Run", {"not evaluated; to make it": run_facts.command(run, self.plan, self.own)})]
            if is_evaluated:
                facts = run_facts.sections(self.root, self.plan, run, self.own)
            self._numbers[run] = self.add(str(run), facts)
        return self._numbers[run]

    def add(self, name: str, sections: Sequence[run_facts.Section]) -> int:
        """Return the number of something that is described by these sections."""
        texts = [(title, self._html(facts, title).strip()) for title, facts in sections]
        numbers = [[title, self._sections.setdefault(text, len(self._sections))] for title, text in texts]
        self.described.append([name, numbers])
        return len(self.described) - 1

    def cell(self, table: Table, entry: Entry, place: int) -> list[int]:
        """Return the numbers of a cell's runs; of a cell of a settings table, of where it is read."""
        if table.settings:
            return [self.add(f"{table.place}, setting {place + 1}", [("Setting", self._setting(table, place))])]
        return [self.run(run, True) for run in evaluated(entry, self.root)] or [self.run(entry.run, False)]

    def _setting(self, table: Table, place: int) -> dict[str, Any]:
        """Return which setting of the pipeline a cell of a settings table shows, and where that comes from."""
        setting = table.settings[place]
        task = setting.task or table.tasks[0]
        facts: dict[str, Any] = {"read": setting.setting, "task": task, "checkpoints": ", ".join(setting.checkpoints)}
        if setting.recipe:
            sources = hyper(self.plan.params, Run("", task, setting.checkpoints[0], setting.recipe, 0))[1]
            facts |= {"recipe": setting.recipe, "source": sources[setting.setting.partition(".")[2]]}
        return facts


def provenance(root: Path, plan: Plan, standings: Sequence[Standing], own: str | None = None) -> dict[str, Any]:
    """Return where every cell of tables comes from, as ``root``/results and ``root``/logs tell, for the page's script.

    ``own`` is the user's file whose rows are among the tables.

    Returns:
        ``columns``: [key, words] of what is told of a cell; ``cells``: by sheet, [title, values of these columns,
        numbers of runs]; ``runs``: a list of [name, [[title, number of a section], ...]]; ``sections``: HTML,
        see :mod:`flexround.results.render.run_facts`.
    """
    catalogue = Catalogue(root, plan, own)
    columns = [name for name in Entry._fields if name not in (*NAMES, *LAYOUT)]
    cells = {}
    for s in standings:
        for place, (entry, sheet) in enumerate(s.sheets.items()):
            name = words.listed(entry.section, entry.method, entry.bits, entry.column, words.of(entry.metric))
            texts = dict(zip(Entry._fields, entry.texts, strict=True))
            texts["higher_is_better"] = {True: "yes", False: "no", None: ""}[entry.higher_is_better]
            told = [texts[column] for column in columns]
            cells[sheet] = [f"{s.table.title}: {name}", told, catalogue.cell(s.table, entry, place)]
    in_words = [[name, words.of(name)] for name in columns]
    return {"columns": in_words, "cells": cells, "runs": catalogue.described, "sections": catalogue.sections}


def evaluated(entry: Entry, root: Path) -> list[Run]:
    """Return the runs that a cell is the median of: the first ``n_seeds`` that are evaluated."""
    count = entry.n_seeds or 0
    files = (root / evaluated_dir(entry.run)).parent.glob("seed*/metrics.json") if count else ()
    seeds = sorted(int(path.parent.name.removeprefix("seed")) for path in files)
    return [dataclasses.replace(entry.run, seed=seed) for seed in seeds[:count]]
