"""What crosses the files of ``params/``: names that stand for something, code that is there, rules that fit something.

What a value may be by itself is checked by its type (``schema.py``) when its file is read.
"""

import contextlib
import fnmatch
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flexround.errors import SettingsError, look_up, suggest
from flexround.settings import code, options
from flexround.settings.layout import FULL_PRECISION, Run
from flexround.settings.params import Params, hyper
from flexround.settings.schema import Hyper, Recipe, Strict, TrainRule
from flexround.settings.tables import Table
from flexround.settings.validation import attempt, given, noted, wrong_parts


def check(params: Params) -> None:
    """Check the settings of a scale.

    Raises:
        SettingsError: a line for each mistake. What rules give networks and runs together is looked at when each rule
            alone is right.
    """
    errors = _check_rules(params) + _check_patterns(params) + _check_options(params) + _check_references(params)
    if FULL_PRECISION not in params.recipes.recipes:
        errors.append(f"params/recipes.yaml: the recipe {FULL_PRECISION} is required")
    if not errors:
        errors = _check_runs(params) + _check_trained(params)
    if not errors:
        errors = [f"{table.file}: {line}" for table in params.tables.values() for line in check_bits(params, table)]
        for name in params.recipes.made("select"):
            if len(found := {params.recipes.bits(other) for other in params.recipe(name).select}) > 1:
                errors.append(f"params/recipes.yaml: {name}.select: recipes of different bits {sorted(found)}")
    if errors:
        raise SettingsError("\n".join(dict.fromkeys(errors)))


def _check_references(params: Params) -> list[str]:
    """Check every name that stands for something: a recipe, rounding, source or task of the files, or code."""
    recipes, scale, spec = params.recipes.recipes, params.scale, params.figures.sample_size
    errors: list[str] = []

    def refuse(where: str, check: Callable[..., object], *values: object) -> None:
        errors.extend(attempt(f"{where}: ", check, *values))

    for name, recipe in recipes.items():
        if recipe.rounding:
            refuse(f"params/recipes.yaml: {name}", check_rounding, params, recipe)
        for other in recipe.select:
            refuse(f"params/recipes.yaml: {name}.select", _check_candidate, params, other)
    for name, checkpoint in scale.checkpoints.items():
        where = f"scale {scale.name}: checkpoints.{name}"
        for source in checkpoint.sources:
            refuse(where, look_up, "source", params.sources, source)
        if checkpoint.pretrain:
            refuse(where, look_up, "task", scale.tasks, checkpoint.pretrain)
        model, finish = checkpoint.model, checkpoint.finish
        refuse(where, code.check, model.factory, model.args)
        for target in filter(None, (model.blocks, model.equalization, checkpoint.loader, checkpoint.key_map)):
            refuse(where, code.check, target)
        if finish is not None:
            refuse(where, code.check, finish.function, finish.args, 1)
    for name, task in scale.tasks.items():
        for source in task.sources:
            refuse(f"scale {scale.name}: tasks.{name}", look_up, "source", params.sources, source)
    for table in params.tables.values():
        for row in table.rows():
            refuse(table.file, params.recipe, row.recipe)
        named = {table.metric_names.get(metric, metric) for cell in table.cells() for metric in cell.metrics}
        for metric in sorted(named) if scale.comparable else ():
            refuse(table.file, look_up, "tolerance", table.tolerance, metric)
    shown = [panel.recipe for panels in params.figures.shifts.values() for panel in panels]
    for name in (*shown, *spec.recipes.values()):
        refuse(f"params/{scale.shows.figures}", params.recipe, name)
    for method, size in itertools.product(spec.recipes, scale.figures.sample_sizes):
        refuse(f"scale {scale.name}: figures.sample_sizes", params.recipe, spec.recipe(method, size))
    return errors


def check_rounding(params: Params, recipe: Recipe) -> None:
    """Check that a recipe's rounding is there and takes its options."""
    code.check_rounding(params.rounding_target(recipe.rounding or ""), recipe.options)


def _check_candidate(params: Params, name: str) -> None:
    """Check that a recipe can be chosen by ``select``: the evaluation then builds the network without surgery."""
    recipe = params.recipe(name)
    if not recipe.setting or recipe.preprocess:
        raise SettingsError(f"{name} can't be chosen: it needs a setting of its own, and no preprocess")


def _check_options(params: Params) -> list[str]:
    """Check that each task is there, and takes its options."""
    errors: list[str] = []
    for name, task in params.scale.tasks.items():
        with noted(errors, f"scale {params.scale.name}: tasks.{name}: "):
            code.check(task.module)
            given(options.of(task.module).options, task.options, "options")
    return errors


def _check_rules(params: Params) -> list[str]:
    """Check the settings of each rule and recipe alone, where their file is known."""
    scale = f"scale {params.scale.name}"
    parts = {f"params/defaults.yaml: hyper.{i}.set": rule.set for i, rule in enumerate(params.defaults.hyper)}
    parts |= {f"{scale}: hyper.{i}.set": rule.set for i, rule in enumerate(params.scale.hyper)}
    parts |= {f"params/recipes.yaml: {name}.hyper": recipe.hyper for name, recipe in params.recipes.recipes.items()}
    wrong = [lines for where, values in parts.items() for lines in wrong_parts(Hyper, values, where).values()]
    wrong += [_check_training(params, rule, f"{scale}: train.{i}.set") for i, rule in enumerate(params.scale.train)]
    return list(itertools.chain(*wrong))


def _check_training(params: Params, rule: TrainRule, where: str) -> list[str]:
    """Check that one of the tasks that a rule is for takes each of its settings."""
    names = fnmatch.filter(params.scale.tasks, rule.when.get("task", "*"))
    kinds = list(dict.fromkeys(_training(params, name) for name in names))
    known = {field for kind in kinds if kind is not None for field in kind.model_fields}
    if None in kinds:
        return []  # a task that checks its settings itself
    errors = [f"{where}: {key}: unknown key {suggest(key, known)}" for key in rule.set if kinds and key not in known]
    wrong: dict[str, list[list[str]]] = {}  # for each kind that has the key
    for kind in filter(None, kinds):
        own = {key: value for key, value in rule.set.items() if key in kind.model_fields}
        parts = wrong_parts(kind, own, where)
        for key in own:
            wrong.setdefault(key, []).append(parts.get(key, []))
    return errors + [line for found in wrong.values() if all(found) for line in found[0]]


def _training(params: Params, task: str) -> type[Strict] | None:
    """Return the class of a task's train settings; None if it has none or, as reported elsewhere, isn't there."""
    with contextlib.suppress(SettingsError):
        return options.of(params.scale.tasks[task].module).training
    return None


def _check_trained(params: Params) -> list[str]:
    """Check what the rules together give each network; of networks with the same settings the first is named."""
    errors: dict[str, list[str]] = {}
    for task, checkpoint in _networks(params):
        kind, settings = _training(params, task), params.train(task, checkpoint)
        if kind is not None and settings is not None and (alike := f"{kind} {settings}") not in errors:
            where = f"scale {params.scale.name}: train: what the rules give {checkpoint} on {task}"
            errors[alike] = attempt("", given, kind, settings, where)
    return list(itertools.chain(*errors.values()))


def _networks(params: Params) -> Iterator[tuple[str, str]]:
    """Yield the tasks and checkpoints that the scale has and that pretraining or a table puts together."""
    for name, checkpoint in params.scale.checkpoints.items():
        if checkpoint.pretrain:
            yield checkpoint.pretrain, name
    for table in params.tables.values():
        for task, name in table.pairs():
            if task in params.scale.tasks and name in params.scale.checkpoints:
                yield task, name


def check_bits(params: Params, table: Table) -> list[str]:
    """Return the rows whose bits aren't those of their recipes, or of the rows with which they compete silently."""
    errors: list[str] = []
    first: dict[str, str] = {}
    for group in table.groups:
        for row in group.rows:
            bits = params.recipes.bits(row.recipe)
            said = row.bits.replace("16", "32") or (first.setdefault(row.section, bits) if group.compare else bits)
            if said != bits:
                errors.append(
                    f"{row.method}: bits = {row.bits or said}, its recipe {row.recipe} has {bits}; change one"
                )
    return errors


def _check_patterns(params: Params) -> list[str]:
    """Check that every pattern of a scale's rules fits something: a rule with a typo in it would be lost in silence."""
    recipes = params.recipes.recipes
    known: dict[str, list[str]] = {
        "task": list(params.scale.tasks),
        "checkpoint": list(params.scale.checkpoints),
        "recipe": list(recipes),
    }
    known["stage"] = list(params.scale.resources)
    for field in ("setting", "rounding", "w_bits", "a_bits"):
        known[field] = sorted({str(getattr(recipe, field)) for recipe in recipes.values()})
    rules: dict[str, Sequence[Any]] = {
        "hyper": params.scale.hyper,
        "train": params.scale.train,
        "gates": params.scale.gates,
        "trials": params.scale.trials,
        "needs": params.scale.needs,
    }
    return [
        f"scale {params.scale.name}: {kind}.{number}.when.{field}: nothing fits; " + suggest(str(pattern), known[field])
        for kind, of_kind in rules.items()
        for number, rule in enumerate(of_kind)
        for field, pattern in rule.when.items()
        if not fnmatch.filter(known[field], str(pattern))
    ]


def _check_runs(params: Params) -> list[str]:
    """Resolve every run of a table or figure; a recipe that none shows must fit at least one of their networks."""
    errors = [line for pair in params.pairs() for line in attempt("", params.gate, *pair)]
    shown: dict[str, list[tuple[str, str]]] = {}
    for task, checkpoint, name in params.shown():
        shown.setdefault(name, []).append((task, checkpoint))
    for name in params.recipes.made("setting"):
        runs = [Run(params.scale.name, *pair, name, 0) for pair in shown.get(name) or params.pairs()]
        found = [attempt("", hyper, params, run) for run in runs]
        if name in shown or all(found):
            errors += itertools.chain(*found)
    return _merged(errors)


def _merged(errors: list[str]) -> list[str]:
    """Return one line for each mistake that many runs share."""
    mistakes: dict[str, list[str]] = {}
    for error in errors:
        where, _, text = error.partition(": ")
        mistakes.setdefault(text, []).append(where)
    more = {text: f" and {len(places) - 1} more runs" if len(places) > 1 else "" for text, places in mistakes.items()}
    return [f"{places[0]}{more[text]}: {text}" for text, places in mistakes.items()]
