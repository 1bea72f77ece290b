"""The validated settings of a scale, resolved by its rules for each network and run. Imports no torch."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from flexround import metrics
from flexround.errors import SettingsError, look_up, suggest
from flexround.settings import options
from flexround.settings.layout import PARAMS, Run
from flexround.settings.schema import (
    Checkpoint,
    Defaults,
    GateRule,
    Hyper,
    HyperRule,
    Recipe,
    Recipes,
    Resources,
    Scale,
    Stage,
)
from flexround.settings.sources import Source
from flexround.settings.tables import Budgets, ByBits, Figure, FigureSpecs, GridShifts, Table
from flexround.settings.validation import given, load, validate

R = TypeVar("R", bound=Any)  # any rule of schema.py with `when`
DEFAULT = "the default of its field in class Hyper"  # source of a value that no rule sets


class Params(NamedTuple):
    """The validated settings of one scale."""

    scale: Scale
    recipes: Recipes
    defaults: Defaults
    sources: dict[str, Source]
    tables: dict[int, Table]
    figures: FigureSpecs
    like: Mapping[str, tuple[str, tuple[HyperRule, ...]]] = {}  # recipe -> the recipe whose rules apply, further rules

    def recipe(self, name: str) -> Recipe:
        """Return a recipe by name."""
        return look_up("recipe", self.recipes.recipes, name)

    def checkpoint(self, name: str) -> Checkpoint:
        """Return a checkpoint by name."""
        return look_up(f"scale {self.scale.name}: checkpoint", self.scale.checkpoints, name)

    def train(self, task: str, checkpoint: str) -> dict[str, Any] | None:
        """Return the fine-tuning settings of a task and a checkpoint, or None if the weights are used unchanged.

        Raises:
            SettingsError: an unknown key, a wrong or missing value, unless the task itself checks its settings.
        """
        fitting = matching(self.scale.train, task=task, checkpoint=checkpoint)
        if not fitting:
            return None
        settings = {key: value for rule in fitting for key, value in rule.set.items()}
        if kind := options.of(self.scale.tasks[task].module).training:
            given(kind, settings, f"scale {self.scale.name}, train settings of {task}/{checkpoint}")
        return settings

    def gate(self, task: str, checkpoint: str) -> GateRule:
        """Return the bounds that a full-precision network must meet before it is quantized, and their task options."""
        fitting = matching(self.scale.gates, task=task, checkpoint=checkpoint)
        if not fitting:
            raise SettingsError(f"scale {self.scale.name}: gates: no rule fits task {task}, checkpoint {checkpoint}")
        rule = fitting[-1]
        self.check_metric(f"scale {self.scale.name}: gates", task, rule.metric, rule.options)
        return rule

    def check_metric(self, where: str, task: str, name: str, changed: dict[str, Any] | None = None) -> None:
        """Refuse a metric that a task with ``changed`` options doesn't report, if its family declares its metrics."""
        spec = self.scale.tasks[task]
        family = options.of(spec.module)
        checked = validate(family.options, spec.options | (changed or {}), where)
        if family.metrics is None:
            metrics.of(name)
        elif name not in (known := list(family.metrics(checked))):
            raise SettingsError(f"{where}: task {task} gives no metric {suggest(name, known)}")

    def check_fit(self, run: Run) -> None:
        """Refuse a choice among networks if the run's task has no held-out training data."""
        recipe, spec = self.recipe(run.recipe), self.scale.tasks[run.task]
        family = options.of(spec.module)
        there = getattr(validate(family.options, spec.options, str(run)), "heldout", family.heldout)
        if recipe.select and not there:
            raise SettingsError(
                f"{run}: select chooses on held-out training data, of which task {run.task} has none; set its option "
                f"heldout if it has one, or take one of {', '.join(recipe.select)}"
            )

    def seeds(self, task: str) -> int:
        """Return the number of trials of a task's quantized runs."""
        return [self.scale.seeds, *(rule.seeds for rule in matching(self.scale.trials, task=task))][-1]

    def resources(self, stage: Stage, task: str | None = None, checkpoint: str | None = None) -> Resources:
        """Return the resources that a stage's job requests; its task and checkpoint decide which rules match."""
        rules = matching(self.scale.needs, stage=stage, task=task, checkpoint=checkpoint)
        changes: dict[str, float] = {name: value for rule in rules for name, value in rule.set.items()}
        return self.scale.resources[stage].model_copy(update=changes)

    def shown(self) -> list[tuple[str, str, str]]:
        """Return every (task, checkpoint, recipe) of the scale that a table or figure shows."""
        found = [run for table in self.tables.values() for run in table.runs()]
        found += [run for figure in self.figures.figures for run in self.figure(figure)]
        found += [(task, checkpoint, other) for task, checkpoint, name in found for other in self.recipe(name).select]
        scale = self.scale
        return [run for run in dict.fromkeys(found) if run[0] in scale.tasks and run[1] in scale.checkpoints]

    def figure(self, figure: Figure) -> list[tuple[str, str, str]]:
        """Return every (task, checkpoint, recipe) of a figure, even if the scale lacks some."""
        if isinstance(figure, GridShifts):
            return [(panel.task, panel.checkpoint, panel.recipe) for panel in figure.panels]
        if isinstance(figure, ByBits):
            known = {str(number): table for number, table in self.tables.items()}
            return look_up(f"figure {figure.number}: table", known, str(figure.table)).runs()
        if isinstance(figure, Budgets):
            return figure.runs()
        sizes = self.scale.figures.sample_sizes
        names = [figure.recipe(method, size) for method in figure.recipes for size in sizes]
        return [(figure.task, figure.checkpoint, name) for name in names]

    def pairs(self) -> list[tuple[str, str]]:
        """Return every (task, checkpoint) of the scale that a table or figure shows."""
        return list(dict.fromkeys((task, checkpoint) for task, checkpoint, _ in self.shown()))

    def rounding_target(self, name: str) -> str:
        """Return a rounding's ``package.module:Class``, given its name or this path."""
        if ":" in name:
            return name
        if name not in self.recipes.roundings:
            raise SettingsError(f"rounding {suggest(name, self.recipes.roundings)}, or give package.module:Class")
        return self.recipes.roundings[name]


def hyper(params: Params, run: Run) -> tuple[Hyper, dict[str, str]]:
    """Resolve a quantized run's hyper-parameters.

    Returns:
        The validated settings, and each key's source.

    Raises:
        SettingsError: an unknown key, a wrong or missing value.
    """
    recipe, (like, later) = params.recipe(run.recipe), params.like.get(run.recipe, (run.recipe, ()))
    facts = vars(run) | dict(recipe) | {"module": params.scale.tasks[run.task].module}
    of_like = facts | {"recipe": like, "rounding": params.recipe(like).rounding}
    own = recipe.hyper | ({"samples": recipe.samples} if recipe.samples else {})
    rules = matching((*params.defaults.hyper, *params.scale.hyper), **of_like)
    rules += [HyperRule(set=own, source=f"recipe {run.recipe}"), *matching(later, **facts)]
    values: dict[str, Any] = {}
    sources = {name: DEFAULT for name, field in Hyper.model_fields.items() if not field.is_required()}
    for rule in rules:
        values |= rule.set
        sources |= dict.fromkeys(rule.set, rule.source)
    return given(Hyper, values, f"hyper-parameters of {run}"), sources


def refuse_unweighted(values: Hyper, sources: Mapping[str, str], name: str) -> None:
    """Refuse a zero ``reg_weight`` for the rounding ``name``, whose class has a regularizer, unless set on purpose.

    Raises:
        SettingsError: ``reg_weight`` is 0 because of the rules that hold at every scale.
    """
    by_default = {rule.source for rule in load(Defaults, PARAMS / "defaults.yaml").hyper}
    if values.iters and not values.reg_weight and sources["reg_weight"] in by_default:
        raise SettingsError(
            f"{name} has a regularizer, whose weight, reg_weight, is 0 by default; set reg_weight among the "
            "hyper-parameters, to 0 if the regularizer is to be left out"
        )


def matching(rules: Iterable[R], **fields: object) -> list[R]:
    """Return the rules whose patterns all match the given fields; patterns may contain * as in file names.

    No pattern matches a field that is None: ``a_bits: "*"`` means runs with quantized activations.
    """
    known = {key: str(value) for key, value in fields.items() if value is not None}
    return [
        rule
        for rule in rules
        if all(key in known and fnmatch.fnmatchcase(known[key], str(at)) for key, at in rule.when.items())
    ]
