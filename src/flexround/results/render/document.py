"""All tables and figures as one LaTeX document in the paper's order."""

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from pydantic import TypeAdapter

from flexround.results import published_results
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import JudgedClaim
from flexround.results.render import budgets, latex, leads, overview
from flexround.results.render.latex import escape
from flexround.results.render.overview import Standing, standing
from flexround.settings.layout import PARAMS
from flexround.settings.plan import Plan
from flexround.settings.schema import Strict
from flexround.settings.validation import read_yaml

ORDER = PARAMS / "paper.yaml"
LEADS = "leads"


class PaperPart(Strict):
    """A part of the paper; ``items`` are the names of tables and figures in its order."""

    title: str
    items: tuple[str, ...]


def parts(names: Sequence[str]) -> tuple[PaperPart, ...]:
    """Return ``names`` of tables and figures in the paper's parts and order, then all other names."""
    paper = TypeAdapter(tuple[PaperPart, ...]).validate_python(read_yaml(ORDER))
    known = {item for part in paper for item in part.items}
    kept = [part.model_copy(update={"items": tuple(item for item in part.items if item in names)}) for part in paper]
    others = PaperPart(title="Not in the paper", items=tuple(name for name in names if name not in known))
    return tuple(part for part in (*kept, others) if part.items)


def source(root: Path, plan: Plan, figures: str) -> str:
    """Return the LaTeX document of all results in ``root``/results; its first pages have the findings.

    A missing table is replaced by the published table. ``figures`` is the directory of figures, relative to the
    directory in which the document is compiled and which has the figures of :func:`drawn`.
    """
    directory, first = root / "results" / plan.scale.name, drawn(root, plan)
    shown = {s.table.name: s for s in _standings(root, plan) if s.grid}
    names = [table.name for _, table in sorted(plan.params.tables.items())]
    names += [f"figure{number}" for number in sorted(plan.figures)]
    made = {name for name in names if name in shown or name in first or (directory / f"{name}.pdf").exists()}
    missing = [name for part in parts([name for name in names if name not in made]) for name in part.items]
    claims = _claims(root, plan)
    return latex.LATEX.get_template("document.tex").render(
        scale=plan.scale,
        figures=figures,
        fit=latex.FIT,
        first=list(first),
        found=overview.sentences(verdicts.total(claims), verdicts.against_adaround(claims), list(shown.values())),
        parts=parts([name for name in names if name in made and name not in first]),
        total=len(names),
        tables={name: latex.render(s.grid, s.table, plan.scale, True) for name, s in shown.items() if s.grid},
        titles={name: f"{s.table.title}: {s.table.caption.partition('. ')[0]}" for name, s in shown.items()},
        published=sum(s.published for s in shown.values()),
        missing=[_named(name) for name in missing],
        number=lambda name: int(re.sub(r"\D", "", name)),
        named=_named,
        escape=escape,
    )


def drawn(root: Path, plan: Plan) -> dict[str, Figure]:
    """Return the figures of the first pages by name: FlexRound's leads over AdaRound, and published budgets."""
    lines = verdicts.against_adaround(_claims(root, plan))
    found = {LEADS: leads.draw(lines, "FlexRound against AdaRound in every cell", plan.scale.name)} if lines else {}
    for number, points in budgets.load(root, plan).items():
        found[f"figure{number}"] = budgets.draw(points, plan.params.figures[number].title, plan.scale.name)
    return found


def _standings(root: Path, plan: Plan) -> list[Standing]:
    """Return the status of each table, computed here or published."""
    tables = [table for _, table in sorted(plan.params.tables.items())]
    return [standing(table, *published_results.find(root, plan.scale, f"{table.name}.csv")) for table in tables]


def _claims(root: Path, plan: Plan) -> list[JudgedClaim]:
    path, _ = published_results.find(root, plan.scale, "claims.csv")
    return verdicts.load(path, plan.scale)


def _named(name: str) -> str:
    """Return the name of a table or figure in text, such as ``Table~3``."""
    return re.sub(r"(\D+)(\d+)", r"\1~\2", name).capitalize()
