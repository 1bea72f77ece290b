"""A few numbers that stand for all tables, to see at a glance what a change moved: what ``dvc metrics diff`` shows."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd

from flexround.results.paper_numbers import DECIMALS


def summarise(tables: Collection[Path]) -> dict[str, Any]:
    """Return the number of cells by status, and for each table's CSV, recipe and metric the mean over its cells.

    Settings have no mean: only their cells are counted.
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
