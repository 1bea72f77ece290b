"""The settings classes of a task: what a scale may set of its data and of its training. No torch here.

The family of a task declares them in ``options.py`` beside the module of the task: its dictionary ``TASKS`` holds the
settings of each class by name, so that planning imports no task. A task that no such file names, such as one of the
user's in a single file, is imported. It has them as class attributes ``Options`` and, if it can be trained,
``Training``.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from flexround import imports
from flexround.errors import SettingsError
from flexround.settings.schema import Strict


class TaskSettings(NamedTuple):
    """What checks a task's ``options`` and what the ``train`` rules give it; None if it checks the latter itself.

    ``metrics`` returns the names that the task gives with its options; None if only the evaluation tells. ``heldout``
    says whether the task can hold out training data.
    """

    options: type[Strict]
    training: type[Strict] | None
    metrics: Callable[[Any], Iterable[str]] | None = None
    heldout: bool = True


def of(task: str) -> TaskSettings:
    """Return the settings classes of a task, ``package.module:Class``.

    Raises:
        SettingsError: no such module or class, or a class without ``Options``.
    """
    module, _, name = task.partition(":")
    beside = f"{module.rpartition('.')[0]}.options"
    if "." in module:
        with contextlib.suppress(ModuleNotFoundError):  # then the task is imported, or named as missing
            declared = getattr(importlib.import_module(beside), "TASKS", {})
            if name in declared:
                return declared[name]
    kind = imports.load(task)
    if not hasattr(kind, "Options"):
        raise SettingsError(f"{task}: no class attribute Options; declare the options that a scale may set")
    return TaskSettings(kind.Options, getattr(kind, "Training", None))
