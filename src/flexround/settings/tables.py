"""Pydantic models of ``params/tables/`` and ``params/figures.yaml``: the contents of the paper's tables and figures."""

import itertools
import string
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from flexround.settings.layout import PARAMS
from flexround.settings.schema import Count, Positive, Series, Strict


class Column(Strict):
    """A column of a table: one or more metrics shown as a/b. The row supplies the fields that the column omits."""

    name: str
    label: str | None = Field(None, description="LaTeX text of the header, if it is not `name`")
    task: str | None = None
    checkpoint: str | None = None
    metrics: tuple[str, ...] | None = None


class Row(Strict):
    """A row of a table. It supplies the task, checkpoint and metrics that the columns omit."""

    recipe: str
    task: str | None = None
    checkpoint: str | None = None
    metrics: tuple[str, ...] | None = None
    method: str = Field(description="text of the method, as in published.csv")
    label: str | None = Field(None, description="LaTeX text of the method column, if it is not `method`")
    section: str = ""
    bits: str = ""
    extra: tuple[str, ...] = Field((), description="LaTeX text of further descriptive columns (table 1)")


class RowGroup(Strict):
    """Rows between two rules. Among compared rows with equal section and bits, the best value is bold."""

    rows: tuple[Row, ...]
    compare: bool = Field(True, description="whether these rows can be the best")


class CellSpec(NamedTuple):
    """The cell of a table at a row and a column."""

    row: Row
    column: Column
    task: str
    checkpoint: str
    metrics: tuple[str, ...]


class Setting(Strict):
    """A cell of a settings table: the pipeline's value, equal for all its tasks and checkpoints."""

    section: str = ""
    method: str = Field("", description="text of the row, as in published.csv")
    column: str
    setting: Annotated[str, Field(pattern=r"^(train|task|hyper)\.\w+$")] = Field(
        description="train.KEY of the train rules, task.KEY of the task's options, or hyper.KEY of a recipe's runs"
    )
    recipe: str | None = Field(None, description="the recipe of hyper.KEY")
    task: str | None = Field(None, description="the one task of the table that the cell is about; none: all of them")
    checkpoints: tuple[str, ...] = Field(min_length=1)


class Note(Strict):
    """A note under the table about errors in the paper's printed numbers. The numbers stay unchanged."""

    row: Count = Field(description="number of the row, from 1")
    column: str | None = Field(None, description="name of the column; none: the whole row")
    text: str = Field(description="LaTeX text of the note")


class Table(Strict):
    """``params/tables/SERIESNN.yaml``, or a scale's own table: rows name recipes, columns (task, checkpoint, metric).

    A settings table has ``tasks`` and ``settings`` instead of ``groups`` and needs no run.
    """

    series: Series = Field("table", description="first part of its name: `table` for the paper's")
    number: Count
    label: str = Field(description="LaTeX label")
    caption: str = Field(description="LaTeX caption; the scale is appended")
    descriptive: tuple[str, ...] = Field(
        description="headers of the columns left of the numbers: section, bits and extra ones, Method where it is named"
    )
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...] = ()
    tasks: tuple[str, ...] = Field((), description="tasks of a settings table")
    settings: tuple[Setting, ...] = Field((), description="cells of a settings table, row by row")
    metric_names: dict[str, str] = Field(
        {}, description="metric of a task -> its name in published.csv and in the table, where that is another"
    )
    tolerance: dict[str, Positive] = Field(
        {},
        description="metric -> |delta| up to which a cell counts as reproduced, decided before the run; "
        "needed at a comparable scale",
    )
    errata: tuple[Note, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Table":
        if bool(self.groups) == bool(self.settings) or bool(self.settings) != bool(self.tasks):
            raise ValueError("give groups, or tasks and settings")
        if self.groups and "Method" not in self.descriptive:
            raise ValueError("descriptive: one of the headers must be Method")
        rows = self.rows()
        left = 1 + any(row.section for row in rows) + any(row.bits for row in rows)  # 1: the method's cell
        for row in rows:
            if left + len(row.extra) != len(self.descriptive):
                cells = f"the row {row.section} {row.method} has {left + len(row.extra)} cells left of the numbers"
                way = "give one for each of section, bits, extra and Method that a row has"
                raise ValueError(f"descriptive: {len(self.descriptive)} headers, but {cells}; {way}")
        for row, column, key in itertools.product(rows, self.columns, ("task", "checkpoint", "metrics")):
            if (getattr(row, key) is None) == (getattr(column, key) is None):
                place = f"the row {row.section} {row.method} or in the column {column.name}"
                raise ValueError(f"{key}: give it in {place}, and only in one of them")
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("columns: two have one name; give each its own, and with `label` what is shown")
        for name, metrics in dict.fromkeys((cell.column.name, cell.metrics) for cell in self.cells()):
            if len({self.metric_names.get(metric, metric) for metric in metrics}) < len(metrics):
                raise ValueError(f"metric_names: two metrics of the column {name} have one name; make two columns")
        return self

    @property
    def name(self) -> str:
        """The name of the table's files in results, such as ``table3``."""
        return f"{self.series}{self.number}"

    @property
    def title(self) -> str:
        """The table's name in text, such as ``Table 3``."""
        return f"Table {self.name.removeprefix('table')}"

    @property
    def place(self) -> str:
        """The table's name in claims, such as ``table 3``."""
        return f"{self.series} {self.number}"

    @property
    def file(self) -> str:
        """The file that describes the table, for messages."""
        file = f"tables/{self.series}{self.number:02d}.yaml"
        return f"params/{file}" if (PARAMS / file).exists() else f"the scale's own file, table {self.number}"

    @property
    def notes(self) -> list[tuple[str, Note]]:
        """Return each erratum with its letter."""
        return list(zip(string.ascii_lowercase, self.errata, strict=False))

    def mark(self, row: int, column: str | None = None) -> str:
        """Return the letter of a cell's erratum or, without ``column``, of a whole row's; ``""`` without erratum."""
        return "".join(letter for letter, e in self.notes if (e.row, e.column) == (row, column))

    @property
    def method_at(self) -> int:
        """Index, from 0, of the descriptive column with the method, or with a setting's name (the last column)."""
        return self.descriptive.index("Method") if "Method" in self.descriptive else max(0, len(self.descriptive) - 1)

    def pairs(self) -> list[tuple[str, str]]:
        """Return every (task, checkpoint) that the table shows."""
        if self.settings:
            names = dict.fromkeys(name for setting in self.settings for name in setting.checkpoints)
            return [(task, name) for task in self.tasks for name in names]
        return list(dict.fromkeys((task, checkpoint) for task, checkpoint, _ in self.runs()))

    def rows(self) -> list[Row]:
        """Return all rows in order."""
        return [row for group in self.groups for row in group.rows]

    def row_cells(self, row: Row) -> list[CellSpec]:
        """Return a row's cells in order."""
        cells = []
        for column in self.columns:
            task, checkpoint = row.task or column.task or "", row.checkpoint or column.checkpoint or ""
            cells.append(CellSpec(row, column, task, checkpoint, row.metrics or column.metrics or ()))
        return cells

    def runs(self) -> list[tuple[str, str, str]]:
        """Return each cell's (task, checkpoint, recipe)."""
        return [(cell.task, cell.checkpoint, cell.row.recipe) for cell in self.cells()]

    def cells(self) -> list[CellSpec]:
        """Return all cells, row by row."""
        return [cell for row in self.rows() for cell in self.row_cells(row)]


class Panel(Strict):
    """The weight of one run whose grid shifts are drawn."""

    title: str = Field(description="the network")
    method: str = Field("", description="where several are drawn side by side")
    task: str
    checkpoint: str
    recipe: str
    module: str
    paper: str = Field("", description="what the paper says of it: how many weights move, or how far")


class _Figure(Strict):
    """The common fields of all figures."""

    number: Count = Field(description="of the paper; others follow")
    title: str


class GridShifts(_Figure):
    """Shifts of the weights' integer codes by roundings."""

    kind: Literal["shifts"]
    panels: tuple[Panel, ...] = Field(min_length=1)
    histograms: bool = Field(False, description="whether small and large weights are counted beside each panel")


class SampleSize(_Figure):
    """Accuracy against calibration size."""

    kind: Literal["sizes"]
    task: str
    metric: str
    checkpoint: str
    default_size: Count
    recipes: dict[str, str]

    def recipe(self, name: str, size: int) -> str:
        """Return a method's recipe at a calibration size."""
        return self.recipes[name] if size == self.default_size else f"{self.recipes[name]}-n{size}"


class ByBits(_Figure):
    """Accuracy against bits of the weights, from a table's compared rows; full precision is a line."""

    kind: Literal["bits"]
    table: Count


class BudgetPanel(Strict):
    """A network on which methods are compared at several budgets."""

    title: str
    task: str
    checkpoint: str
    metric: str
    iterations: tuple[Count, ...] = Field(min_length=1)
    recipes: dict[str, str] = Field(min_length=1, description="method -> recipe")


class Budgets(_Figure):
    """The methods' metric and reconstruction error against iterations and against CPU seconds."""

    kind: Literal["budgets"]
    panels: tuple[BudgetPanel, ...] = Field(min_length=1)

    @staticmethod
    def recipe(name: str, iterations: int) -> str:
        """Return the name of a recipe with another number of iterations."""
        return f"{name}-i{iterations}"

    def runs(self) -> list[tuple[str, str, str]]:
        """Return each point's (task, checkpoint, recipe)."""
        return [
            (panel.task, panel.checkpoint, self.recipe(recipe, count))
            for panel in self.panels
            for recipe in panel.recipes.values()
            for count in panel.iterations
        ]


Figure = GridShifts | SampleSize | ByBits | Budgets


class FigureSpecs(Strict):
    """``params/figures.yaml``, or the file that a scale uses instead."""

    figures: tuple[Annotated[Figure, Field(discriminator="kind")], ...]

    @model_validator(mode="after")
    def _numbered(self) -> "FigureSpecs":
        kinds = [figure.kind for figure in self.figures]
        if len({figure.number for figure in self.figures}) < len(kinds):
            raise ValueError("figures: two have one number; give each its own")
        if kinds.count("sizes") != 1 or kinds.count("bits") > 1:
            raise ValueError("figures: give one of the kind sizes, and at most one of the kind bits")
        return self

    def __getitem__(self, number: int) -> Figure:
        """Return a figure by its number."""
        return next(figure for figure in self.figures if figure.number == number)

    @property
    def sample_size(self) -> SampleSize:
        """The figure of calibration sizes."""
        return next(figure for figure in self.figures if isinstance(figure, SampleSize))
