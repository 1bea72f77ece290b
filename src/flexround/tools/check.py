"""Check settings across files: every name is defined, all code takes its options, every rule matches a run.

flexround check --scale mine.yaml --own my_rounding.yaml
"""

import argparse
import fnmatch
import inspect
import logging
from collections.abc import Collection, Iterable, Iterator

from flexround import imports
from flexround.errors import SettingsError, look_up, suggest
from flexround.quant.rounding import Rounding
from flexround.reconstruct.reconstruction import checked
from flexround.settings import user_rows
from flexround.settings.layout import Run
from flexround.settings.load import RULES
from flexround.settings.params import Params, hyper, matching, refuse_unweighted
from flexround.settings.validation import noted
from flexround.tools import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.prog, arguments.formatter_class = "flexround check", argparse.RawDescriptionHelpFormatter
    arguments.set_defaults(run=run)
    arguments.add_argument("--own", metavar="FILE", help="your recipes and rows, as in --config own=FILE")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Check a scale together with the user's own rows.

    Raises:
        SettingsError: a line for each mistake.
    """
    params = user_rows.configured(arguments.scale, arguments.own)
    if errors := mistakes(params):
        raise SettingsError("\n".join(errors))
    log.info("scale %s: no mistakes in the settings", params.scale.name)


def mistakes(params: Params) -> list[str]:
    """Return a line for each mistake; runs are resolved if all names, code and rules are right."""
    errors = [*_names(params), *_code(params), *_patterns(params)] or _runs(params)
    return errors or [line for table in params.tables.values() for line in user_rows.unequal(params, table)]


def _names(params: Params) -> list[str]:
    """Return the errors in names of recipes, sources and tasks."""
    scale, errors = params.scale, list[str]()
    with noted(errors):
        params.shown()
    made_from = [(name, task.sources) for name, task in scale.tasks.items()]
    made_from += [(name, tuple(checkpoint.sources)) for name, checkpoint in scale.checkpoints.items()]
    for name, sources in made_from:
        for source in sources:
            with noted(errors, f"scale {scale.name}: {name}: "):
                look_up("source", params.sources, source)
    for name, checkpoint in scale.checkpoints.items():
        if checkpoint.pretrain:
            with noted(errors, f"scale {scale.name}: {name}: "):
                look_up("task", scale.tasks, checkpoint.pretrain)
    return errors


def _code(params: Params) -> list[str]:
    """Return an error for code that does not exist or does not take its options."""
    errors = list[str]()
    for name, checkpoint in params.scale.checkpoints.items():
        model, finish = checkpoint.model, checkpoint.finish
        with noted(errors, f"scale {params.scale.name}: checkpoints.{name}: "):
            _check_options(model.factory, model.args)
            for target in filter(None, (model.blocks, model.equalization, checkpoint.loader, checkpoint.key_map)):
                imports.load(target)
            if finish is not None:
                _check_options(finish.function, finish.args)
    for name, recipe in params.recipes.recipes.items():
        if recipe.rounding:
            with noted(errors, f"recipe {name}: "):
                target = params.rounding_target(recipe.rounding)
                signature = inspect.signature(checked(imports.load(target), target))
                _check_options(target, recipe.options)
                try:
                    signature.bind("weight", "grid", "axes", **recipe.options)
                except TypeError as error:
                    raise SettingsError(f"{target}: {error}; give it in options") from error
    return errors


def _check_options(target: str, options: Iterable[str]) -> None:
    """Check that a function or class takes keyword arguments."""
    parameters = inspect.signature(imports.load(target)).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        for key in options:
            if key not in parameters:
                raise SettingsError(f"{target}: unknown option {suggest(key, parameters)}")


def _patterns(params: Params) -> Iterator[str]:
    """Yield the patterns of rules that match nothing: a rule with a typo would be ignored silently."""
    scale, recipes = params.scale, params.recipes.recipes
    known: dict[str, Collection[str]] = {"task": scale.tasks, "checkpoint": scale.checkpoints, "recipe": recipes}
    known |= {"module": {task.module for task in scale.tasks.values()}, "stage": scale.resources}
    for field in ("setting", "rounding", "w_bits", "a_bits"):
        values = (getattr(recipe, field) for recipe in recipes.values())
        known[field] = {str(value) for value in values if value is not None}
    facts = [dict(recipe) | {"recipe": name} for name, recipe in recipes.items()]
    of_own = {id(rule): rule for _, rules in params.like.values() for rule in rules}.values()
    rules = [(kind, rule) for kind in RULES for rule in getattr(scale, kind)] + [("hyper", rule) for rule in of_own]
    for kind, rule in rules:
        where, about = f"scale {scale.name}: {kind}: when {rule.when}", rule.when.items()
        wrong = {field: str(pattern) for field, pattern in about if not fnmatch.filter(known[field], str(pattern))}
        yield from (f"{where}: no {field} fits {suggest(pattern, known[field])}" for field, pattern in wrong.items())
        of_recipes = rule.model_copy(update={"when": {field: at for field, at in about if field in facts[0]}})
        if not wrong and not any(matching([of_recipes], **of) for of in facts):
            yield f"{where}: no recipe has all of it; change one"


def _runs(params: Params) -> list[str]:
    """Return the errors in the combined settings of networks and runs."""
    scale, errors, pairs = params.scale, list[str](), params.pairs()
    for pair in pairs:
        with noted(errors):
            params.train(*pair), params.gate(*pair)
    for task, checkpoint, name in params.shown():
        if rounding := params.recipe(name).rounding:
            run = Run(scale.name, task, checkpoint, name, 0)
            with noted(errors):
                values, sources = hyper(params, run)
                if imports.load(params.rounding_target(rounding)).regularizer is not Rounding.regularizer:
                    refuse_unweighted(values, sources, f"hyper-parameters of {run}: {rounding}")
    return _merged(errors)


def _merged(errors: list[str]) -> list[str]:
    """Return the errors with one line for each mistake that several runs share."""
    mistakes: dict[str, list[str]] = {}
    for error in errors:
        where, _, text = error.partition(": ")
        mistakes.setdefault(text, []).append(where)
    more = {text: f" and {len(places) - 1} more" if len(places) > 1 else "" for text, places in mistakes.items()}
    return [f"{places[0]}{more[text]}: {text}" for text, places in mistakes.items()]


if __name__ == "__main__":
    cli.main(run, parser())
