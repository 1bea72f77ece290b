"""Suggestions for a target that Snakemake cannot make; the logger plugin shows them."""

import contextlib
import difflib
import re
from pathlib import Path

from flexround.errors import FlexRoundError
from flexround.results.published_results import SHARED
from flexround.settings.load import load_params
from flexround.settings.plan import Plan

OTHERS = (*SHARED, "report.html")  # files of results/ besides tables and figures


def hint(text: str) -> str:
    """Return a hint for Snakemake's error about a target, or an empty text."""
    if not (found := re.search(r"No rule to produce (\S+)", text)):
        return ""
    files, name = files_of_scales(), Path(found[1]).name
    if scales := [scale for scale, names in files.items() if name in names]:
        return f"\nanother scale makes it: --config scale={' or scale='.join(scales)}"
    close = difflib.get_close_matches(name, {*OTHERS}.union(*files.values()), n=3, cutoff=0.5)
    start = f"did you mean {' or '.join(f'results/{name}' for name in close)}? " if close else ""
    return f"\n{start}`snakemake -n --quiet host` lists all that is made; names in paths are those of params/"


def files_of_scales() -> dict[str, list[str]]:
    """Return the files of tables and figures that each scale of the project can make."""
    files = {}
    for path in sorted(Path("params/scales").glob("*.yaml")):
        with contextlib.suppress(FlexRoundError):  # a broken scale makes nothing
            plan = Plan(load_params(path.stem))
            files[plan.scale.name] = plan.files(plan.complete_tables(), plan.complete_figures())
    return files
