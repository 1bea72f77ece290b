"""Where every cell of the tables comes from: its runs, each described once however many cells it has."""

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
        runs = evaluated(entry, self.root)
        return [self.run(run, True) for run in runs] or [self.run(_run(entry, 0), False)]

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
        ``columns``: [key, words] of what is told of a cell; ``cells``: by table, a list of [title, values of these
        columns, numbers of runs]; ``runs``: a list of [name, [[title, number of a section], ...]]; ``sections``: HTML,
        see :mod:`flexround.results.render.run_facts`.
    """
    catalogue = Catalogue(root, plan, own)
    columns = [name for name in Entry._fields if name not in (*NAMES, *LAYOUT)]
    cells = {
        s.table.number: [
            [f"{s.table.title}: {_name(entry)}", _told(entry, columns), catalogue.cell(s.table, entry, place)]
            for place, entry in enumerate(s.entries)
        ]
        for s in standings
    }
    told = [[name, words.of(name)] for name in columns]
    return {"columns": told, "cells": cells, "runs": catalogue.described, "sections": catalogue.sections}


def _name(entry: Entry) -> str:
    """Return what a cell of a table is."""
    return words.listed(entry.section, entry.method, entry.bits, entry.column, words.of(entry.metric))


def _told(entry: Entry, columns: Sequence[str]) -> list[str]:
    """Return the texts of some columns."""
    better = {True: "yes", False: "no", None: ""}[entry.higher_is_better]
    texts = dict(zip(Entry._fields, entry.texts, strict=True)) | {"higher_is_better": better}
    return [texts[name] for name in columns]


def evaluated(entry: Entry, root: Path) -> list[Run]:
    """Return the runs that a cell is the median of: the first ``n_seeds`` that are evaluated."""
    count = entry.n_seeds or 0
    seeds = (root / evaluated_dir(_run(entry, 0))).parent.glob("seed*/metrics.json") if count else ()
    return [_run(entry, seed) for seed in sorted(int(path.parent.name.removeprefix("seed")) for path in seeds)][:count]


def _run(entry: Entry, seed: int) -> Run:
    """Return a cell's run."""
    return Run(entry.scale, entry.task, entry.checkpoint, entry.recipe, seed)
