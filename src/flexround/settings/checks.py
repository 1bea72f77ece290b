"""What crosses the files of ``params/``: names that stand for something, code that is there, rules that fit something.

What a value may be by itself is checked by its type (``schema.py``) when its file is read.
"""

import fnmatch
import itertools
from collections.abc import Callable, Iterable
from typing import get_args

from flexround.errors import SettingsError, look_up, suggest
from flexround.settings import code, options
from flexround.settings.layout import FULL_PRECISION, Run
from flexround.settings.params import Params, hyper, matching, refuse_unweighted
from flexround.settings.schema import Hyper, Stage, TaskSpec
from flexround.settings.tables import GridShifts, Table
from flexround.settings.validation import attempt, given, noted, wrong_parts

RULES = ("hyper", "train", "gates", "trials", "needs")  # of a scale


def check(params: Params) -> None:
    """Check the settings of a scale.

    Raises:
        SettingsError: a line for each mistake. What rules give networks and runs together is looked at when each rule
            alone is right.
    """
    recipes = params.recipes.recipes
    errors = _check_rules(params) + _check_patterns(params) + _check_references(params)
    errors += [line for name in recipes for line in check_recipe(params, name, f"params/recipes.yaml: {name}")]
    if FULL_PRECISION not in recipes:
        errors.append(f"params/recipes.yaml: the recipe {FULL_PRECISION} is required")
    if not errors:
        errors = [line for pair in params.pairs() for line in attempt("", params.gate, *pair)]
        errors += check_runs(params, params.recipes.made("setting")) + _check_trained(params)
        figure, where = params.figures.sample_size, f"params/{params.scale.shows.figures}"
        if figure.task in params.scale.tasks:
            errors += attempt("", params.check_metric, where, figure.task, figure.metric)
    if not errors:
        errors = [f"{table.file}: {line}" for table in params.tables.values() for line in check_bits(params, table)]
    if errors:
        raise SettingsError("\n".join(dict.fromkeys(errors)))


def check_recipe(params: Params, name: str, where: str) -> list[str]:
    """Return what is wrong in a recipe by itself: its hyper-parameters, its rounding, what it chooses among."""
    recipe = params.recipe(name)
    errors = wrong_parts(Hyper, recipe.hyper, f"{where}.hyper")
    if recipe.rounding:
        with noted(errors, f"{where}: "):
            code.check_rounding(params.rounding_target(recipe.rounding), recipe.options)
    if recipe.select:
        errors += attempt(f"{where}.select: ", _check_candidates, params, recipe.select)
    return errors


def check_runs(params: Params, recipes: Iterable[str]) -> list[str]:
    """Resolve every run of a recipe that is shown; one that is not shown must fit at least one of the networks."""
    errors: list[str] = []
    shown: dict[str, list[tuple[str, str]]] = {}
    for task, checkpoint, name in params.shown():
        shown.setdefault(name, []).append((task, checkpoint))
    for name in recipes:
        runs = [Run(params.scale.name, *pair, name, 0) for pair in shown.get(name) or params.pairs()]
        found = [attempt("", _check_run, params, run) for run in runs]
        if name in shown or all(found):
            errors += itertools.chain(*found)
    return _merged(errors)


def _check_run(params: Params, run: Run) -> None:
    """Resolve a quantized run, and look whether its rounding's regularizer has a weight."""
    values, sources = hyper(params, run)
    target = params.rounding_target(params.recipe(run.recipe).rounding or "")
    if code.overrides(target, "regularizer"):
        refuse_unweighted(params, values, sources, f"hyper-parameters of {run}: {target}")


def _check_references(params: Params) -> list[str]:
    """Check what scale, tables and figures name: recipes, sources, tasks and code."""
    scale, spec = params.scale, params.figures.sample_size
    errors: list[str] = []

    def refuse(where: str, check: Callable[..., object], *values: object) -> None:
        errors.extend(attempt(f"{where}: ", check, *values))

    for stage in [stage for stage in get_args(Stage) if stage not in scale.resources]:
        errors.append(f"scale {scale.name}: resources.{stage}: this key is required and missing")
    for name, task in scale.tasks.items():
        where = f"scale {scale.name}: tasks.{name}"
        refuse(where, _check_task, task)
        for source in task.sources:
            refuse(where, look_up, "source", params.sources, source)
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
    for table in params.tables.values():
        for row in table.rows():
            refuse(table.file, params.recipe, row.recipe)
        named = {table.metric_names.get(metric, metric) for cell in table.cells() for metric in cell.metrics}
        for metric in sorted(named) if scale.comparable else ():
            refuse(table.file, look_up, "tolerance", table.tolerance, metric)
    drawn = [figure for figure in params.figures.figures if isinstance(figure, GridShifts)]
    shown = [panel.recipe for figure in drawn for panel in figure.panels]
    for name in (*shown, *spec.recipes.values()):
        refuse(f"params/{scale.shows.figures}", params.recipe, name)
    for method, size in itertools.product(spec.recipes, scale.figures.sample_sizes):
        refuse(f"scale {scale.name}: figures.sample_sizes", params.recipe, spec.recipe(method, size))
    return errors


def _check_candidates(params: Params, names: Iterable[str]) -> None:
    """Check that ``select`` can choose among recipes: an evaluation then builds the network without surgery."""
    for name in names:
        recipe = params.recipe(name)
        if not recipe.setting or recipe.preprocess:
            raise SettingsError(f"{name} can't be chosen: it needs a setting of its own, and no preprocess")
    if len(bits := {params.recipes.bits(name) for name in names}) > 1:
        raise SettingsError(f"recipes of different bits {sorted(bits)}")


def _check_task(task: TaskSpec) -> None:
    """Check that the class of a task is there, and that it takes its options."""
    code.check(task.module)
    given(options.of(task.module).options, task.options, "options")


def _check_rules(params: Params) -> list[str]:
    """Check the hyper-parameters of each rule by itself, where its file is known."""
    files = {"params/defaults.yaml": params.defaults.hyper, f"scale {params.scale.name}": params.scale.hyper}
    sets = {f"{where}: hyper.{i}.set": rule.set for where, rules in files.items() for i, rule in enumerate(rules)}
    return [line for where, values in sets.items() for line in wrong_parts(Hyper, values, where)]


def _check_trained(params: Params) -> list[str]:
    """Check what the rules together give each network that is trained, unless its task checks that itself."""
    scale, errors = params.scale, list[str]()
    pairs = [(checkpoint.pretrain, name) for name, checkpoint in scale.checkpoints.items() if checkpoint.pretrain]
    listed = (pair for table in params.tables.values() for pair in table.pairs())  # settings tables need no run
    pairs += [pair for pair in listed if pair[0] in scale.tasks and pair[1] in scale.checkpoints] + params.pairs()
    for task, checkpoint in dict.fromkeys(pairs):
        kind, settings = options.of(scale.tasks[task].module).training, params.train(task, checkpoint)
        if kind is not None and settings is not None:
            where = f"scale {scale.name}, train settings of {task}/{checkpoint}"
            errors += attempt("", given, kind, settings, where)
    return _merged(errors)


def check_metrics(params: Params, table: Table, where: str) -> list[str]:
    """Return metrics that the tasks of cells don't give; for a table that is made: a scale need not make all."""
    asked = dict.fromkeys((cell.task, metric) for cell in table.cells() for metric in cell.metrics)
    return [line for pair in asked for line in attempt("", params.check_metric, where, *pair)]


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
    scale, recipes = params.scale, params.recipes.recipes
    known: dict[str, Iterable[str]] = {"task": scale.tasks, "checkpoint": scale.checkpoints, "stage": scale.resources}
    known |= {"recipe": recipes, "module": {task.module for task in scale.tasks.values()}}
    for field in ("setting", "rounding", "w_bits", "a_bits"):
        values = (getattr(recipe, field) for recipe in recipes.values())
        known[field] = {str(value) for value in values if value is not None}
    errors = [
        f"scale {scale.name}: {kind}.{number}.when.{field}: nothing fits; " + suggest(str(pattern), known[field])
        for kind in RULES
        for number, rule in enumerate(getattr(scale, kind))
        for field, pattern in rule.when.items()
        if not fnmatch.filter(known[field], str(pattern))
    ]
    facts = [dict(recipe) | {"recipe": name} for name, recipe in recipes.items()]
    for number, rule in enumerate(() if errors else scale.hyper):
        about = {field: pattern for field, pattern in rule.when.items() if field in facts[0]}
        if not any(matching([rule.model_copy(update={"when": about})], **of) for of in facts):
            said = ", ".join(f"{field} {pattern}" for field, pattern in about.items())
            errors.append(f"scale {scale.name}: hyper.{number}.when: no recipe has {said} together; change one")
    return errors


def _merged(errors: list[str]) -> list[str]:
    """Return one line for each mistake that many runs share."""
    mistakes: dict[str, list[str]] = {}
    for error in errors:
        where, _, text = error.partition(": ")
        mistakes.setdefault(text, []).append(where)
    more = {text: f" and {len(places) - 1} more" if len(places) > 1 else "" for text, places in mistakes.items()}
    return [f"{places[0]}{more[text]}: {text}" for text, places in mistakes.items()]
