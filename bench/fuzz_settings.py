"""Kinds of :mod:`fuzz`: what people write. A changed setting is another setting; the whole plan must be made of it."""

import itertools
import shutil
from pathlib import Path
from typing import Any

from fuzz import Kind

from flexround.results.claims import specs
from flexround.settings import additions, load
from flexround.settings.layout import PARAMS
from flexround.settings.plan import Plan

FILES = ("scales/mini.yaml", "scales/real.yaml", "recipes.yaml", "defaults.yaml", "figures.yaml", "sources.yaml")
FILES += ("tables/table03.yaml", "tables/table13.yaml", "claims.yaml")
OWN = """\
recipes:
  mine: {setting: B, rounding: flexround, w_bits: 3, hyper: {iters: 100, lr: {all: 1e-3}}, options: {learn_s1: false}}
rows:
  - {table: 2, recipe: mine, method: "B + Mine", bits: 3/32}
"""


def settings(directory: Path) -> None:
    """Write ``params`` and a user's file."""
    shutil.copytree(PARAMS, directory / "params", ignore=shutil.ignore_patterns("networks"))
    (directory / "own.yaml").write_text(OWN)


def planned(directory: Path, scale: str) -> Any:
    """Read all settings of a scale and resolve every run of it, as Snakemake does before it starts a job."""
    kept, load.PARAMS = load.PARAMS, directory / "params"
    try:
        plan = Plan(additions.configured(scale, str(directory / "own.yaml") if scale == "mini" else None))
        specs.load(directory / "params/claims.yaml")
    finally:
        load.PARAMS = kept
    runs = [run for number in plan.complete_tables() for run in plan.table_runs(number)]
    runs += [run for number in plan.complete_figures() for run in plan.figure_runs(number)]
    for run in itertools.islice(runs, 40):
        if plan.params.recipe(run.recipe).setting:
            plan.hyper(run), plan.samples_dir(run)
        plan.origins(run.task, run.checkpoint), plan.task_files(run.task), plan.gate(run)
    return [str(run) for run in runs]


def kind(name: str) -> Kind:
    """Return the kind of one file of settings."""
    scale = "real" if "real" in name else "mini"
    return Kind(f"settings: {name}", settings, lambda directory: planned(directory, scale), files=(name,))


KINDS = [*(kind(f"params/{name}") for name in FILES), kind("own.yaml")]
