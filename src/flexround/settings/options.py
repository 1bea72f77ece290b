"""The settings classes of a task, for its data and its training. This module imports no torch.

A task family declares them in ``options.py`` beside the task's module: the dictionary ``TASKS`` maps class names to
settings, so that planning imports no task. If no such file names a task, e.g. a user's task in a single file, the task
is imported. Its settings classes are then its class attributes ``Options`` and, if it can be trained, ``Training``.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from flexround import imports
from flexround.errors import SettingsError
from flexround.settings.schema import Strict


class TaskSettings(NamedTuple):
    """The classes that check a task's ``options`` and its ``train`` settings; None if the task checks the latter.

    ``metrics`` returns the metric names of a task with given options; None if only the evaluation knows them.
    ``heldout`` tells whether the task can hold out training data.
    """

    options: type[Strict]
    training: type[Strict] | None
    metrics: Callable[[Any], Iterable[str]] | None = None
    heldout: bool = True


def of(task: str) -> TaskSettings:
    """Return the settings classes of a task given as ``package.module:Class``.

    Raises:
        SettingsError: no such module or class, or a class without ``Options``.
    """
    module, _, name = task.partition(":")
    beside = f"{module.rpartition('.')[0]}.options"
    if "." in module:
        with contextlib.suppress(ModuleNotFoundError):  # then the task is imported, or reported as missing
            declared = getattr(importlib.import_module(beside), "TASKS", {})
            if name in declared:
                return declared[name]
    kind = imports.load(task)
    if not hasattr(kind, "Options"):
        raise SettingsError(f"{task}: no class attribute Options; declare the options that a scale may set")
    return TaskSettings(kind.Options, getattr(kind, "Training", None))
