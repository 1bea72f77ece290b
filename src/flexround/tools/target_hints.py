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
    if "marked for report but does not exist" in text:
        made = [str(path) for kind in ("table*.csv", "real*.csv", "figure*.pdf") for path in Path("results").glob(kind)]
        return f"\nname what is made: snakemake {' '.join(sorted(made)) or 'TARGET'} --report report.html"
    if not (found := re.search(r"No rule to produce (\S+)", text)):
        return ""
    files, name = files_of_scales(), Path(found[1]).name
    if scales := [scale for scale, names in files.items() if name in names]:
        return f"\nanother scale makes it: --config scale={' or scale='.join(scales)}"
    close = difflib.get_close_matches(name, {*OTHERS}.union(*files.values()), n=3, cutoff=0.5)
    meant = [f"results/{name}" for name in close] or corrected(found[1])
    start = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"\n{start}`snakemake -n --quiet host` lists all that is made; names in paths are those of params/"


def files_of_scales() -> dict[str, list[str]]:
    """Return the files of tables and figures that each scale of the project can make."""
    files = {}
    for path in sorted(Path("params/scales").glob("*.yaml")):
        with contextlib.suppress(FlexRoundError):  # a broken scale makes nothing
            plan = Plan(load_params(path.stem))
            files[plan.scale.name] = plan.files(plan.complete_tables(), plan.complete_figures())
    return files


def corrected(target: str) -> list[str]:
    """Return a run's path with the closest names that its scale has, if they differ from the path's names."""
    try:
        params = load_params(target.split("/")[1])
    except (FlexRoundError, IndexError):
        return []
    known = {"results", "evaluated", "quantized", params.scale.name, *params.scale.tasks, *params.scale.checkpoints}
    known |= params.recipes.recipes.keys()
    parts = [(difflib.get_close_matches(part, known, 1, 0.8) or [part])[0] for part in target.split("/")]
    closest = "/".join(parts)
    return [closest] if closest != target else []
