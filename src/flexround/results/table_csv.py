"""A table as a DataFrame: one line per cell, in the paper's order; the source of CSV, LaTeX, HTML and terminal."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flexround import metrics
from flexround.results import frames
from flexround.results.cells import Cell
from flexround.results.grid import Entry
from flexround.results.paired import EXACT, Lead, leads
from flexround.results.paper_numbers import DECIMALS, SETTING, Key
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Table

COLUMNS = Entry._fields
NOT_RUN = "not run"  # status of a cell whose checkpoint was not selected
CLOSE = 3  # a cell within this many tolerances is close
P_DECIMALS = 4
SMALLEST_PLAIN = 1e-2  # the paper writes smaller settings as 5e-3


def of_cells(cells: Iterable[Cell], numbers: Mapping[Key, float], table: Table, scale: ScaleFacts) -> pd.DataFrame:
    """Return a table of cells with fixed columns and decimals, independent of the clock.

    Raises:
        InputError: rivals can't be compared, see :func:`flexround.results.paired.leads`.
    """
    cells = list(cells)
    by_key = leads(cells)
    lines = (
        _identity(cell)
        | _measured(cell)
        | _comparison(cell, numbers.get(cell.key), table, scale.comparable)
        | _significance(by_key.get(cell.key))
        for cell in cells
    )
    return frames.made(lines, COLUMNS)


def measured(cells: Iterable[Cell]) -> pd.DataFrame:
    """Return a table of cells without comparisons, neither with the paper nor with each other."""
    return frames.made((_identity(cell) | _measured(cell) | {"best": 0} for cell in cells), COLUMNS)


def of_settings(values: Sequence[float], numbers: Mapping[Key, float], table: Table, scale: ScaleFacts) -> pd.DataFrame:
    """Return a table of settings with the same columns; nothing is run, ``values`` are its cells' values.

    Rows are numbered by section and method; task and checkpoint are the first pair that shares a value.
    """
    rows = list(dict.fromkeys((setting.section, setting.method) for setting in table.settings))
    sections = list(dict.fromkeys(section for section, _ in rows))
    lines = []
    for setting, value in zip(table.settings, values, strict=True):
        section, method = setting.section, setting.method
        row = rows.index((section, method)) + 1
        key = Key(table.number, row, section, method, "", setting.column, SETTING)
        published = numbers.get(key)
        equal = "reproduced" if value == published else "off"
        facts = {
            "value": shown(value),
            "published": "" if published is None else shown(published),
            "status": "computed" if published is None or not scale.comparable else equal,
            "scale": scale.name,
            "task": setting.task or table.tasks[0],
            "checkpoint": setting.checkpoints[0],
            "recipe": setting.recipe or "",
            "group": sections.index(section) + 1,
            "best": 0,
        }
        lines.append(key._asdict() | facts)
    return frames.made(lines, COLUMNS)


def summarise(tables: Collection[Path]) -> dict[str, Any]:
    """Return the number of cells by status, and the mean over cells for each table's CSV, recipe and metric.

    ``dvc metrics diff`` shows the effect of a change on it. Settings have no mean; only their cells are counted.
    """
    if not tables:
        return {"cells": {}}
    cells = pd.concat([pd.read_csv(path, dtype={"value": str}).assign(table=path.stem) for path in tables])
    summary: dict[str, Any] = {"cells": {status: int(n) for status, n in cells["status"].value_counts().items()}}
    measured = cells[cells["n_examples"].notna()].astype({"value": float})
    means = measured.groupby(["table", "recipe", "metric"])["value"].mean().round(DECIMALS)
    for (table, recipe, metric), mean in means.items():
        summary.setdefault(table, {}).setdefault(recipe, {})[metric] = mean
    return summary


def status(cell: Cell, delta: float | None, tolerance: float) -> str:
    """Return the status of a cell; ``delta`` is None if the cell has no comparison with the paper."""
    if not cell.selected:
        return NOT_RUN
    if not cell.trials:
        return "missing"
    if not cell.complete:
        return "partial"
    if delta is None:
        return "computed"
    if round(abs(delta), EXACT) <= tolerance:
        return "reproduced"
    return "close" if round(abs(delta), EXACT) <= round(CLOSE * tolerance, EXACT) else "off"


def _identity(cell: Cell) -> dict[str, str | int]:
    """Return the identity of a cell and of its runs."""
    run = {"scale": cell.run.scale, "task": cell.run.task, "checkpoint": cell.run.checkpoint, "recipe": cell.run.recipe}
    return cell.key._asdict() | run | {"group": cell.group}


def _measured(cell: Cell) -> dict[str, str | int]:
    """Return the measured columns; empty for a cell without trials."""
    median = cell.median_trial if cell.trials else None
    return {
        "value": number(cell.median if median else None),
        "spread": number(cell.spread),
        "n_seeds": str(len(cell.trials)),
        "n_examples": str(median.n_examples) if median else "",
        "stderr": number(median.stderr if median else None),
        "higher_is_better": str(int(metrics.of(cell.metric).higher_is_better)) if median else "",
    }


def _comparison(cell: Cell, published: float | None, table: Table, comparable: bool) -> dict[str, str]:
    """Return the published value if it exists, and the cell's difference from it if they are comparable."""
    delta, tolerance = None, 0.0
    if comparable and cell.trials and published is not None:
        delta = round(cell.median, DECIMALS) - published  # as a reader would subtract
        tolerance = table.tolerance[cell.key.metric]
    state = status(cell, delta, tolerance)
    return {"published": number(published), "delta": number(delta), "status": state}


def _significance(lead: Lead | None) -> dict[str, str | int]:
    """Return the cell's lead over the best other cell of its contest, and whether it wins."""
    if lead is None:
        return {"best": 0}
    return {
        "best": int(lead.best),
        "rival": lead.rival.key.method,
        "lead": number(lead.value),
        "lead_stderr": number(lead.sure.stderr),
        "p_value": number(lead.sure.p_value, P_DECIMALS),
    }


def number(value: float | None, decimals: int = DECIMALS) -> str:
    """Return a number with fixed decimals, without a minus sign before zero; empty for None, NaN and infinity."""
    return "" if value is None or not math.isfinite(value) else f"{round(value, decimals) + 0.0:.{decimals}f}"


def shown(value: float) -> str:
    """Return a number in the paper's notation: 2e-5, 5e-3, 0.01, 32."""
    if 0 < abs(value) < SMALLEST_PLAIN:
        digits, exponent = f"{value:e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:g}"
