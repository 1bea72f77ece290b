"""Tables of settings: what fine-tuning really uses, read from the scale; nothing is run."""

from collections.abc import Iterator, Mapping
from typing import Any

from flexround.errors import SettingsError, suggest
from flexround.settings.load import Params
from flexround.settings.schema import Setting, Table
from flexround.tables.published import SETTING, Key, lookup
from flexround.tables.tidy import write

SMALLEST_PLAIN = 1e-3  # the paper writes smaller settings as 2e-5


def to_csv(table: Table, params: Params, numbers: Mapping[Key, float]) -> str:
    """Return the CSV of a settings table, with the columns of every other table.

    Args:
        table: tasks and settings.
        params: holds the settings that the pipeline uses.
        numbers: the published numbers.

    Raises:
        SettingsError: the scale lacks a task, checkpoint or setting, or those that share a cell differ.
        InputError: a cell has no published number.
    """
    return write(_entry(key, table, setting, params, lookup(numbers, key)) for key, setting in keyed(table))


def keyed(table: Table) -> Iterator[tuple[Key, Setting]]:
    """Yield each cell of a settings table with its identity; rows are numbered by their method from 1."""
    rows = list(dict.fromkeys(setting.method for setting in table.settings))
    for setting in table.settings:
        row = rows.index(setting.method) + 1
        yield Key(table.number, row, "", setting.method, "", setting.column, SETTING), setting


def shown(value: float) -> str:
    """Return a number as the paper writes it: 2e-5, 0.01, 32."""
    if 0 < abs(value) < SMALLEST_PLAIN:
        digits, exponent = f"{value:e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:g}"


def _entry(key: Key, table: Table, setting: Setting, params: Params, published: float) -> dict[str, str | int]:
    """Return a line of the CSV; task and checkpoint are the first of those that share the value."""
    value = _agreed(table, setting, params)
    equal = "reproduced" if value == published else "off"
    return key._asdict() | {
        "value": shown(value),
        "published": shown(published),
        "status": equal if params.scale.comparable else "computed",
        "scale": params.scale.name,
        "task": table.tasks[0],
        "checkpoint": setting.checkpoints[0],
        "group": 1,
        "best": 0,
    }


def _agreed(table: Table, setting: Setting, params: Params) -> float:
    """Return the value that all tasks and checkpoints of a cell share."""
    pairs = [(task, checkpoint) for task in table.tasks for checkpoint in setting.checkpoints]
    values = {pair: _value(setting.setting, *pair, params) for pair in pairs}
    first = pairs[0]
    for pair, value in values.items():
        if value != values[first]:
            raise SettingsError(
                f"table {table.number} prints one {setting.setting} for all: scale {params.scale.name} has "
                f"{values[first]} for {'/'.join(first)}, but {value} for {'/'.join(pair)}; make them equal"
            )
    return values[first]


def _value(setting: str, task: str, checkpoint: str, params: Params) -> float:
    """Return a setting of a pair."""
    scale = params.scale
    if task not in scale.tasks:
        raise SettingsError(f"scale {scale.name}: task {suggest(task, scale.tasks)}")
    params.checkpoint(checkpoint)
    kind, _, key = setting.partition(".")
    known: dict[str, Any] = scale.tasks[task].options if kind == "task" else params.train(task, checkpoint) or {}
    where = f"scale {scale.name}: " + (f"tasks.{task}.options" if kind == "task" else f"train: {task}/{checkpoint}")
    if not isinstance(known.get(key), int | float):
        raise SettingsError(f"{where}: {key} = {known.get(key)!r}: write a number, the task's table shows it")
    return known[key]
