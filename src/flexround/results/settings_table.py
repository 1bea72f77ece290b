"""Tables of settings: the CSV of what fine-tuning and reconstruction really use; nothing is run."""

from collections.abc import Iterator, Mapping, Sequence

from flexround.results.paper_numbers import SETTING, Key
from flexround.results.table_csv import write
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Setting, Table

SMALLEST_PLAIN = 1e-2  # the paper writes smaller settings as 5e-3


def to_csv(table: Table, values: Sequence[float], scale: ScaleFacts, numbers: Mapping[Key, float]) -> str:
    """Return the CSV of a settings table, with the columns of every other table; ``values`` are those of its cells."""
    cells = zip(keyed(table), values, strict=True)
    return write(_entry(key, table, setting, value, scale, numbers.get(key)) for (key, setting), value in cells)


def keyed(table: Table) -> Iterator[tuple[Key, Setting]]:
    """Yield each cell of a settings table with its identity; rows are numbered by section and method from 1."""
    rows = list(dict.fromkeys((setting.section, setting.method) for setting in table.settings))
    for setting in table.settings:
        row = rows.index((setting.section, setting.method)) + 1
        yield Key(table.number, row, setting.section, setting.method, "", setting.column, SETTING), setting


def shown(value: float) -> str:
    """Return a number as the paper writes it: 2e-5, 5e-3, 0.01, 32."""
    if 0 < abs(value) < SMALLEST_PLAIN:
        digits, exponent = f"{value:e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:g}"


def _entry(
    key: Key, table: Table, setting: Setting, value: float, scale: ScaleFacts, published: float | None
) -> dict[str, str | int]:
    """Return a line of the CSV; task and checkpoint are the first of those that share the value."""
    sections = list(dict.fromkeys(other.section for other in table.settings))
    equal = "reproduced" if value == published else "off"
    return key._asdict() | {
        "value": shown(value),
        "published": "" if published is None else shown(published),
        "status": "computed" if published is None or not scale.comparable else equal,
        "scale": scale.name,
        "task": setting.task or table.tasks[0],
        "checkpoint": setting.checkpoints[0],
        "recipe": setting.recipe or "",
        "group": sections.index(setting.section) + 1,
        "best": 0,
    }
