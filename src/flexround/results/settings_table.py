"""Tables of settings: what fine-tuning and reconstruction really use, read from the scale; nothing is run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexround.errors import SettingsError, suggest
from flexround.results.paper_numbers import SETTING, Key
from flexround.results.table_csv import write
from flexround.settings.layout import Run
from flexround.settings.load import Params, hyper
from flexround.settings.schema import ScaleFacts
from flexround.settings.tables import Setting, Table

SMALLEST_PLAIN = 1e-2  # the paper writes smaller settings as 5e-3


def resolve(table: Table, params: Params) -> list[float]:
    """Return what the pipeline uses for each cell of a settings table, in the order of ``table.settings``.

    Raises:
        SettingsError: the scale lacks a task, checkpoint or setting, or those that share a cell differ.
    """
    return [_agreed(table, setting, params) for setting in table.settings]


def to_csv(table: Table, values: Sequence[float], scale: ScaleFacts, numbers: Mapping[Key, float]) -> str:
    """Return the CSV of a settings table, with the columns of every other table; ``values`` are from `resolve`."""
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


def _agreed(table: Table, setting: Setting, params: Params) -> float:
    """Return the value that all tasks and checkpoints of a cell share."""
    tasks = [setting.task] if setting.task else table.tasks
    pairs = [(task, checkpoint) for task in tasks for checkpoint in setting.checkpoints]
    values = {pair: _value(setting, *pair, params) for pair in pairs}
    first = pairs[0]
    for pair, value in values.items():
        if value != values[first]:
            raise SettingsError(
                f"table {table.number} prints one {setting.setting} for all: scale {params.scale.name} has "
                f"{values[first]} for {'/'.join(first)}, but {value} for {'/'.join(pair)}; make them equal"
            )
    return values[first]


def _value(setting: Setting, task: str, checkpoint: str, params: Params) -> float:
    """Return a setting of a pair."""
    scale, (kind, _, key) = params.scale, setting.setting.partition(".")
    if task not in scale.tasks:
        raise SettingsError(f"scale {scale.name}: task {suggest(task, scale.tasks)}")
    params.checkpoint(checkpoint)
    known: Mapping[str, Any]
    if kind == "task":
        where, known = f"tasks.{task}.options", scale.tasks[task].options
    elif setting.recipe is None:
        where, known = f"train: {task}/{checkpoint}", params.train(task, checkpoint) or {}
    else:
        run = Run(scale.name, task, checkpoint, setting.recipe, 0)
        where, known = f"hyper: {task}/{checkpoint}/{setting.recipe}", hyper(params, run)[0].model_dump()
    if not isinstance(known.get(key), int | float):
        raise SettingsError(
            f"scale {scale.name}: {where}: {key} = {known.get(key)!r}: write a number, the task's table shows it"
        )
    return known[key]
