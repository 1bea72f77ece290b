"""All tables and figures as one LaTeX document in the paper's order."""

import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from flexround.io.artifacts import read_text
from flexround.results import grid, published_results
from flexround.results.render import latex
from flexround.results.render.latex import escape
from flexround.settings.layout import PARAMS
from flexround.settings.plan import Plan
from flexround.settings.schema import Strict
from flexround.settings.tables import Table
from flexround.settings.validation import read_yaml

ORDER = PARAMS / "paper.yaml"
PUBLISHED = "Published with this repository, not computed here."


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
    """Return the LaTeX document of all results in ``root``/results; its first page lists missing results.

    A missing table is replaced by the published table, with a note in its caption. ``figures`` is the directory of
    figures, relative to the directory in which the document is compiled.
    """
    directory = root / "results" / plan.scale.name
    names = [table.name for _, table in sorted(plan.params.tables.items())]
    names += [f"figure{number}" for number in sorted(plan.figures)]
    made = {table.name: directory / f"{table.name}.tex" for table in plan.params.tables.values()}
    tables = {name: read_text(path) for name, path in made.items() if path.exists()}
    others = (table for table in plan.params.tables.values() if table.name not in tables)
    published = {table.name: text for table in others if (text := _published(root, plan, table))}
    tables |= published
    missing = [name for name in names if name not in tables and not (directory / f"{name}.pdf").exists()]
    return latex.LATEX.get_template("document.tex").render(
        scale=plan.scale,
        figures=figures,
        fit=latex.FIT,
        parts=parts([name for name in names if name not in missing]),
        total=len(names),
        tables=tables,
        published=len(published),
        missing=[name for part in parts(missing) for name in part.items],
        number=lambda name: int(re.sub(r"\D", "", name)),
        named=lambda name: re.sub(r"(\D+)(\d+)", r"\1~\2", name).capitalize(),
        escape=escape,
    )


def _published(root: Path, plan: Plan, table: Table) -> str | None:
    """Return the published fragment of a table, with a note in its caption; None if the scale has none."""
    path = published_results.find_published(root, plan.scale, f"{table.name}.csv")
    if path is None:
        return None
    said = r"\caption{" + rf"\emph{{{escape(PUBLISHED)}}} "
    return latex.render(grid.load(path), table, plan.scale).replace(r"\caption{", said, 1)
