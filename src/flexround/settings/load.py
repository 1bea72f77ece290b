"""Read and validate ``params/``; resolve a run's settings. No torch here: the Snakefile imports this."""

import fnmatch
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from flexround.errors import SettingsError, look_up, suggest
from flexround.settings import code, limits
from flexround.settings.layout import FULL_PRECISION, PARAMS, REFERENCE, SOURCES, Run
from flexround.settings.schema import (
    Checkpoint,
    Defaults,
    Gate,
    Hyper,
    Recipe,
    Recipes,
    Resources,
    Scale,
    Shows,
    Source,
    Stage,
)
from flexround.settings.tables import FigureSpecs, Table
from flexround.settings.validation import S, attempt, error_line, given, noted, read_yaml


class Params(NamedTuple):
    """The validated settings of one scale."""

    scale: Scale
    recipes: Recipes
    defaults: Defaults
    sources: dict[str, Source]
    tables: dict[int, Table]
    figures: FigureSpecs

    def recipe(self, name: str) -> Recipe:
        """Return a recipe by name."""
        return look_up("recipe", self.recipes.recipes, name)

    def checkpoint(self, name: str) -> Checkpoint:
        """Return a checkpoint by name."""
        return look_up(f"scale {self.scale.name}: checkpoint", self.scale.checkpoints, name)

    def train(self, task: str, checkpoint: str) -> dict[str, Any] | None:
        """Return the fine-tuning settings of a pair, or None if its weights are used as they come."""
        fields = {"task": task, "checkpoint": checkpoint}
        matching = [rule.set for rule in self.scale.train if _matches(rule.when, fields)]
        return {key: value for values in matching for key, value in values.items()} if matching else None

    def gate(self, task: str, checkpoint: str) -> Gate:
        """Return what a pair must show in full precision before it is quantized."""
        fields = {"task": task, "checkpoint": checkpoint}
        matching = [rule for rule in self.scale.gates if _matches(rule.when, fields)]
        if not matching:
            raise SettingsError(f"scale {self.scale.name}: gates: no rule fits task {task}, checkpoint {checkpoint}")
        return matching[-1]

    def seeds(self, task: str) -> int:
        """Return the trials of a quantized run of a task."""
        matching = [rule.seeds for rule in self.scale.trials if _matches(rule.when, {"task": task})]
        return matching[-1] if matching else self.scale.seeds

    def resources(self, stage: Stage, task: str | None = None, checkpoint: str | None = None) -> Resources:
        """Return what a job of a stage asks of the machine; what it is of narrows the rules that can fit."""
        fields = {"stage": stage, "task": task, "checkpoint": checkpoint}
        known = {name: value for name, value in fields.items() if value is not None}
        rules = [
            rule.set for rule in self.scale.needs if known.keys() >= rule.when.keys() and _matches(rule.when, known)
        ]
        changes = {name: value for needs in rules for name, value in needs.model_dump(exclude_none=True).items()}
        return self.scale.resources[stage].model_copy(update=changes)

    def shown(self) -> list[tuple[str, str, str]]:
        """Return every (task, checkpoint, recipe) of the scale that a table or figure shows."""
        cells = [cell for table in self.tables.values() for cell in table.cells()]
        found = [(cell.task, cell.checkpoint, cell.row.recipe) for cell in cells]
        panels = [panel for panels in self.figures.shifts.values() for panel in panels]
        found += [(panel.task, panel.checkpoint, panel.recipe) for panel in panels]
        spec = self.figures.sample_size
        names = [spec.recipe(method, size) for method in spec.recipes for size in self.scale.figures.sample_sizes]
        found += [(spec.task, spec.checkpoint, name) for name in names]
        found += [(task, checkpoint, other) for task, checkpoint, name in found for other in self.recipe(name).select]
        scale = self.scale
        return [run for run in dict.fromkeys(found) if run[0] in scale.tasks and run[1] in scale.checkpoints]

    def pairs(self) -> list[tuple[str, str]]:
        """Return every (task, checkpoint) of the scale that a table or figure shows."""
        return list(dict.fromkeys((task, checkpoint) for task, checkpoint, _ in self.shown()))

    def rounding_target(self, name: str) -> str:
        """Return ``package.module:Class`` of a rounding given by name or by such a path."""
        if ":" in name:
            return name
        if name not in self.recipes.roundings:
            raise SettingsError(f"rounding {suggest(name, self.recipes.roundings)}, or give package.module:Class")
        return self.recipes.roundings[name]


def scale_path(name: str) -> Path:
    """Return the file of a scale, given its name or a path to a YAML file.

    Raises:
        SettingsError: no such scale.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    known = {file.stem: file for file in (PARAMS / "scales").glob("*.yaml")}
    if name not in known:
        raise SettingsError(f"scale {suggest(name[:60], known)}, or give a path that ends in .yaml")
    return known[name]


def read_scale(name: str, extending: tuple[Path, ...] = ()) -> Any:
    """Read a scale; what it says is laid over the scale that it ``extends``, if it does.

    Mappings are joined key by key, a key given as null is left out, and rules follow those of the other scale, so that
    they win.

    Args:
        name: of a scale, or a path; relative to the file that extends it.
        extending: the files that led here.

    Raises:
        SettingsError: a missing file, a syntax error, or scales that extend each other in a circle.
    """
    beside = bool(extending) and name.endswith((".yaml", ".yml"))
    path = Path(os.path.normpath(extending[-1].parent / name if beside else scale_path(name)))
    if path in extending:
        raise SettingsError(f"{path}: extends: {' -> '.join(map(str, (*extending, path)))} is a circle")
    content = read_yaml(path)
    if not isinstance(content, dict) or "extends" not in content:
        return content
    return _laid_over(read_scale(str(content.pop("extends")), (*extending, path)), content)


def _check_name(name: str, path: Path) -> None:
    """Check that the results of a scale have a directory of their own: two files can't have one name."""
    home, path = (PARAMS / "scales").resolve(), path.resolve()
    known = path.parent == home or (home / f"{name}.yaml").exists()
    if f"results/{name}" in (SOURCES, REFERENCE) or (known and path != home / f"{name}.yaml"):
        way = f"its results need a place of their own; write {path.stem}, or another that no file in {home} has"
        raise SettingsError(f"name = {name!r}: {way}")


def _laid_over(base: Any, change: Any) -> Any:
    """Return ``base`` with ``change`` over it."""
    if isinstance(base, dict) and isinstance(change, dict):
        joined = {key: _laid_over(base.get(key), value) for key, value in change.items() if value is not None}
        return {key: value for key, value in base.items() if key not in change} | joined
    if isinstance(base, list) and isinstance(change, list) and all(isinstance(rule, dict) for rule in change):
        return base + change
    return change


def load_params(scale: str) -> Params:
    """Read and validate everything a scale needs, and resolve the settings of every run.

    Args:
        scale: name of a file in ``params/scales/`` or a path to a YAML file.

    Raises:
        SettingsError: all errors of all files together.
    """
    errors: list[str] = []

    def read(model: type[S], path: Path, reader: Callable[[Path], Any] = read_yaml) -> S | None:
        with noted(errors):
            return given(model, reader(path), str(path))
        return None

    scale_settings = read(Scale, scale_path(scale), lambda _: read_scale(scale))
    if scale_settings:
        errors += attempt(f"{scale_path(scale)}: ", _check_name, scale_settings.name, scale_path(scale))
    recipes = read(Recipes, PARAMS / "recipes.yaml")
    defaults = read(Defaults, PARAMS / "defaults.yaml")
    shows = scale_settings.shows if scale_settings else Shows.model_validate({})
    limits.check_names((shows.figures, shows.claims), f"{scale_path(scale)}: shows")
    tables = [read(Table, path) for path in sorted((PARAMS / "tables").glob(f"{shows.tables}[0-9]*.yaml"))]
    figures = read(FigureSpecs, PARAMS / shows.figures)
    sources = read_sources(errors)
    if errors or not (scale_settings and recipes and defaults and figures):
        raise SettingsError("\n".join(errors))
    params = Params(scale_settings, recipes, defaults, sources, {t.number: t for t in tables if t}, figures)
    _check_shown(params)
    _check(params)
    return params


def read_sources(errors: list[str]) -> dict[str, Source]:
    """Read ``params/sources.yaml``, appending what is wrong to ``errors``."""
    path, sources = PARAMS / "sources.yaml", {}
    with noted(errors):
        rows = read_yaml(path)
        if not isinstance(rows, dict):
            raise SettingsError(f"{path}: write a mapping of names to sources")
        limits.check_names(rows, str(path))
        for name, row in rows.items():
            with noted(errors):
                sources[str(name)] = given(Source, row, f"{path}: {name}")
                limits.check_inside(sources[str(name)].file, f"{path}: {name}.file")
    return sources


def hyper(params: Params, run: Run) -> tuple[Hyper, dict[str, str]]:
    """Resolve the hyper-parameters of a quantized run.

    Returns:
        The validated settings, and for each key the source that set it.

    Raises:
        SettingsError: an unknown key, a wrong value or a missing one.
    """
    recipe = params.recipe(run.recipe)
    fields = vars(run) | {name: getattr(recipe, name) for name in ("setting", "rounding", "w_bits", "a_bits")}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for rule in (*params.defaults.hyper, *params.scale.hyper):
        if _matches(rule.when, fields):
            values |= rule.set
            sources |= dict.fromkeys(rule.set, rule.source)
    own = recipe.hyper | ({"samples": recipe.samples} if recipe.samples else {})
    values |= own
    sources |= dict.fromkeys(own, f"recipe {run.recipe}")
    return given(Hyper, values, f"hyper-parameters of {run}"), sources


def _matches(when: Mapping[Any, str | int], fields: dict[str, Any]) -> bool:
    """Whether each pattern of a rule fits; strings are compared as file-name patterns."""
    return all(fnmatch.fnmatchcase(str(fields[key]), str(pattern)) for key, pattern in when.items())


def _check_shown(params: Params) -> None:
    """Check that there are tables, and the one that a figure shows by its bits."""
    shows, where = params.scale.shows, f"scale {params.scale.name}: shows"
    if not params.tables:
        series = {path.stem.rstrip("0123456789") for path in (PARAMS / "tables").glob("*.yaml")}
        raise SettingsError(f"{where}.tables: no params/tables has {suggest(shows.tables, series)}")
    if (spec := params.figures.by_bits) and spec.table not in params.tables:
        raise SettingsError(
            f"{where}: figure {spec.number} of params/{shows.figures} shows table {spec.table}, which series "
            f"{shows.tables!r} lacks; it has {', '.join(map(str, sorted(params.tables)))}"
        )


def _check(params: Params) -> None:
    """Check what crosses files: recipes name roundings, checkpoints name tasks and sources, every run resolves."""
    errors = _check_limits(params) + _check_parts(params) + _check_patterns(params)
    errors += [line for where, check, name in _references(params) for line in attempt(where, check, name)]
    errors += _check_runs(params) if not errors else []
    if FULL_PRECISION not in params.recipes.recipes:
        errors.append(f"params/recipes.yaml: the recipe {FULL_PRECISION} is required")
    if not errors:
        errors += [f"{table.file}: {line}" for table in params.tables.values() for line in check_bits(params, table)]
        for name in params.recipes.made("select"):
            if len(found := {params.recipes.bits(other) for other in params.recipe(name).select}) > 1:
                errors.append(
                    f"params/recipes.yaml: {name}.select: recipes of different bits {sorted(map(str, found))}"
                )
        places = {f"scale {params.scale.name}": params.scale, "params/recipes.yaml": params.recipes}
        for where, settings in (places | {"params/defaults.yaml": params.defaults}).items():
            errors += attempt("", limits.check_ranges, settings.model_dump(mode="json"), where)
    if errors:
        raise SettingsError("\n".join(dict.fromkeys(errors)))


def _references(params: Params) -> Iterator[tuple[str, Callable[[str], object], str]]:
    """Yield every name that stands for something: its place, the function that refuses a wrong one, the name."""
    recipes, scale, spec = params.recipes.recipes, params.scale, params.figures.sample_size
    for name, recipe in recipes.items():
        if recipe.rounding:
            yield f"params/recipes.yaml: {name}: ", functools.partial(_check_rounding, params, recipe), recipe.rounding
        for other in recipe.select:
            yield f"params/recipes.yaml: {name}.select: ", functools.partial(_check_candidate, params), other
    known_source = functools.partial(look_up, "source", params.sources)
    for name, checkpoint in scale.checkpoints.items():
        for source in checkpoint.sources:
            yield f"scale {scale.name}: checkpoints.{name}: ", known_source, source
        if checkpoint.pretrain:
            known_task = functools.partial(look_up, "task", scale.tasks)
            yield f"scale {scale.name}: checkpoints.{name}: ", known_task, checkpoint.pretrain
    for name, task in scale.tasks.items():
        for source in task.sources:
            yield f"scale {scale.name}: tasks.{name}: ", known_source, source
    for table in params.tables.values():
        for row in table.rows():
            yield f"{table.file}: ", params.recipe, row.recipe
    shown = [panel.recipe for panels in params.figures.shifts.values() for panel in panels]
    for name in (*shown, *spec.recipes.values()):
        yield f"params/{scale.shows.figures}: ", params.recipe, name
    for method, size in itertools.product(spec.recipes, scale.figures.sample_sizes):
        yield f"scale {scale.name}: figures.sample_sizes: ", params.recipe, spec.recipe(method, size)


def _check_rounding(params: Params, recipe: Recipe, name: str) -> None:
    """Check that a recipe's rounding, named ``name``, is there and takes its options."""
    code.check_class(params.rounding_target(name), recipe.options)


def _check_limits(params: Params) -> list[str]:
    """Check names, paths, labels and the bounds of gates."""
    scale, where = params.scale, f"scale {params.scale.name}"
    errors = attempt(f"{where}: ", limits.check_names, scale.tasks, "tasks")
    errors += attempt(f"{where}: ", limits.check_names, scale.checkpoints, "checkpoints")
    errors += attempt("params/recipes.yaml: ", limits.check_names, params.recipes.recipes, "recipes")
    for name, task in scale.tasks.items():
        errors += attempt(f"{where}: ", limits.check_inside, task.files, f"tasks.{name}.files")
    for number, gate in enumerate(scale.gates):
        if gate.min > gate.max:
            errors.append(f"{where}: gates.{number}: min = {gate.min:g} is above max = {gate.max:g}; swap them")
    for table in params.tables.values():
        errors += attempt(f"{table.file}: ", limits.check_names, [table.series], "series")
        labels = [("columns", column.name) for column in table.columns]
        labels += [(key, getattr(row, key)) for row in table.rows() for key in ("method", "section", "bits")]
        for key, text in labels:
            errors += attempt(f"{table.file}: ", limits.check_label, text, key)
    return errors


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


def _check_parts(params: Params) -> list[str]:
    """Check the hyper-parameters of each rule and recipe alone, where their file is known."""
    parts = {f"params/defaults.yaml: hyper.{i}.set": rule.set for i, rule in enumerate(params.defaults.hyper)}
    parts |= {f"scale {params.scale.name}: hyper.{i}.set": rule.set for i, rule in enumerate(params.scale.hyper)}
    parts |= {f"params/recipes.yaml: {name}.hyper": recipe.hyper for name, recipe in params.recipes.recipes.items()}
    errors = []
    for where, values in parts.items():
        try:
            Hyper.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            wrong = (item for item in error.errors() if item["type"] != "missing" and item["loc"])
            errors += [error_line(Hyper, item, where) for item in wrong]
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


def _check_candidate(params: Params, name: str) -> None:
    """Check that a recipe can be chosen by ``select``: the evaluation then builds the network without surgery."""
    recipe = params.recipe(name)
    if not recipe.setting or recipe.preprocess:
        raise SettingsError(f"{name} can't be chosen: it needs a setting of its own, and no preprocess")
