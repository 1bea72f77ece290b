"""Code that settings name, ``package.module:name``: is it there, does it take its options? Nothing is imported."""

import ast
import fnmatch
from collections.abc import Iterable

from flexround.errors import SettingsError, suggest
from flexround.settings import definitions
from flexround.settings.schema import Scale, TrainRule
from flexround.settings.validation import attempt, noted


def check(target: str, options: Iterable[str] = (), first: int = 0) -> None:
    """Check that a function or class is there and takes the keyword arguments ``options``.

    Args:
        target: ``package.module:name``.
        options: names of keyword arguments.
        first: parameters that it is given by the suite, before them.

    Raises:
        SettingsError: no such module or name, a syntax error, or an argument that it doesn't take.
    """
    if (found := definitions.find(target)) is None:
        return
    known = definitions.parameters(*found)
    if known is not None:
        _refuse_unknown(target, options, known[first:])


def check_class(target: str, options: Iterable[str] = ()) -> None:
    """Check a rounding as :func:`check` does; it must be a class, made of weight, grid, axes and the options."""
    errors: list[str] = []
    with noted(errors, "rounding "):
        found = definitions.find(target)
        if found is not None and not isinstance(found[1], ast.ClassDef):
            raise SettingsError(f"{target!r}: is no class; name a subclass of Rounding")
        check(target, options, first=3)
    if errors:
        raise SettingsError("\n".join(errors))


def check_scale(scale: Scale) -> None:
    """Check all code that a scale names.

    Raises:
        SettingsError: a line for each target that isn't there, and each option that one doesn't take.
    """
    errors: list[str] = []
    for name, task in scale.tasks.items():
        errors += attempt(f"scale {scale.name}: tasks.{name}: ", check_task, task.module, task.options)
    for name, checkpoint in scale.checkpoints.items():
        model, where = checkpoint.model, f"scale {scale.name}: checkpoints.{name}: "
        errors += attempt(where, check, model.factory, model.args)
        for target in filter(None, (model.blocks, model.equalization, checkpoint.loader, checkpoint.key_map)):
            errors += attempt(where, check, target)
        if (finish := checkpoint.finish) is not None:
            errors += attempt(where, check, finish.function, finish.args, 1)
    for number, rule in enumerate(scale.train):
        errors += attempt(f"scale {scale.name}: train.{number}.set: ", check_training, scale, rule)
    if errors:
        raise SettingsError("\n".join(errors))


def check_training(scale: Scale, rule: TrainRule) -> None:
    """Check that one of the tasks that a rule is for takes each of its settings."""
    modules = [task.module for name, task in scale.tasks.items() if fnmatch.fnmatch(name, rule.when.get("task", "*"))]
    known: list[str] = []
    for module in sorted(set(modules)):
        found = definitions.training_of(module)
        fields = definitions.fields(*found) if found is not None else None
        if fields is None:
            return
        known += fields
    if modules:
        _refuse_unknown(", ".join(sorted(set(modules))), rule.set, list(dict.fromkeys(known)))


def check_task(target: str, options: Iterable[str]) -> None:
    """Check that a task is there and that its class ``Options`` has fields of these names."""
    found = definitions.options_of(target)
    fields = definitions.fields(*found) if found is not None else None
    if fields is not None:
        _refuse_unknown(target, options, fields)


def _refuse_unknown(target: str, options: Iterable[str], known: list[str]) -> None:
    """Raise SettingsError for options that something doesn't take."""
    if wrong := [option for option in options if option not in known]:
        raise SettingsError("\n".join(f"{target}: unknown option {suggest(option, known)}" for option in wrong))
