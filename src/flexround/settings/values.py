"""Values that scales give tasks: options, and settings of their training, checked by the classes of the tasks.

Only classes are imported whose modules import nothing slow. A task of one's own whose classes stand beside an import of
torch is checked by the job that makes its data or trains; its options' names are checked by ``settings.code``.
"""

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flexround.errors import SettingsError
from flexround.settings import definitions, reach
from flexround.settings.definitions import Found
from flexround.settings.load import Params
from flexround.settings.validation import attempt, given

FAST = sys.stdlib_module_names | {"numpy", "pydantic", "yaml"}  # imported by every Snakefile anyway


def check(params: Params) -> None:
    """Check the values of the options of all tasks, and of the train settings of all networks that are trained.

    Raises:
        SettingsError: a line for each value that the task doesn't take, and each setting that it needs and doesn't get;
            of networks with the same train settings the first is named.
    """
    scale = params.scale
    errors: list[str] = []
    for name, task in scale.tasks.items():
        where = f"scale {scale.name}: tasks.{name}: options"
        errors += attempt("", _check_given, definitions.options_of(task.module), task.options, where)
    trained: dict[str, tuple[Found | None, dict[str, Any], str]] = {}
    for name, checkpoint in _networks(params):
        if (settings := params.train(name, checkpoint)) is not None:
            found = definitions.training_of(scale.tasks[name].module)
            where = f"scale {scale.name}: train: what the rules give {checkpoint} on {name}"
            trained.setdefault(f"{found and found[0]} {settings}", (found, settings, where))
    for arguments in trained.values():
        errors += attempt("", _check_given, *arguments)
    if errors:
        raise SettingsError("\n".join(errors))


def _networks(params: Params) -> Iterator[tuple[str, str]]:
    """Yield the tasks and checkpoints that the scale has and that pretraining or a table puts together."""
    for name, checkpoint in params.scale.checkpoints.items():
        if checkpoint.pretrain:
            yield checkpoint.pretrain, name
    for table in params.tables.values():
        for task, name in table.pairs():
            if task in params.scale.tasks and name in params.scale.checkpoints:
                yield task, name


def _check_given(found: Found | None, values: Mapping[str, Any], where: str) -> None:
    """Check values by a settings class if it can be imported fast; who makes the data or trains checks them anyway."""
    if found is not None and is_fast(found[0]):
        kind = getattr(importlib.import_module(found[0]), getattr(found[1], "name", ""))
        if issubclass(kind, BaseModel):
            given(kind, values, where)


@functools.cache
def is_fast(module: str) -> bool:
    """Whether a module and all that it imports at its top are the project's, the user's or among ``FAST``."""
    seen, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] in FAST:
            continue
        seen.add(name)
        if (own := reach.read_module(name)) is None:
            return False
        waiting += [symbol.module for symbol in own.imported.values()]
        waiting += [own.package] if own.package else []
    return True
