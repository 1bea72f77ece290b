"""The runs behind each table and figure, and all their inputs. Imports no torch, because the Snakefile imports it."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from flexround.errors import SettingsError, look_up
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.params import Params, hyper
from flexround.settings.schema import Count, Hyper, Resources, Stage, Strict, Trials
from flexround.settings.tables import ByBits, GridShifts, SampleSize
from flexround.settings.validation import validate

UNLEARNED = ("rtn", "gptq")  # roundings without iterations
SHORTEST = 20  # iterations that the rest of a reconstruction takes


class Output(NamedTuple):
    """The output of one step: a directory, or a gate's file."""

    step: str  # data, finetune, gate, calibrate, reconstruct, choice or evaluate
    run: Run  # the run that it belongs to; a checkpoint's run has full precision
    place: str

    @property
    def pair(self) -> tuple[str, str]:
        """The output's task and checkpoint."""
        return self.run.task, self.run.checkpoint

    @property
    def done(self) -> bool:
        """Whether the output exists, relative to the working directory; files in a manifest are not checked."""
        marks = {"gate": "", "evaluate": "metrics.json"}
        return Path(self.place, marks.get(self.step, "manifest.json")).exists()


class Config(Strict):
    """The options of a run, from ``config/config.yaml`` or ``--config``."""

    scale: str = Field("mini", description="models, data and budgets; a file in params/scales by its name, or a path")
    seeds: Trials | None = Field(None, description="trials of each quantized run; instead of those of the scale")
    checkpoints: str | None = Field(None, description="only the cells of these networks; names joined by commas")
    jobs_per_gpu: Count = Field(1, description="jobs that share a GPU; the resource gpu then counts jobs")
    own: str | None = Field(None, description="a YAML file with recipes, rows and roundings of your own; its path")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "Config":
        """Validate Snakemake's config without keys that are None; SettingsError for an unknown key or wrong value."""
        return validate(cls, {key: str(value) for key, value in given.items() if value is not None}, "--config")


class Plan:
    """The work of one scale.

    Args:
        params: validated settings.
        config: the fields of :class:`Config`; ``params`` already reflects ``scale`` and ``own``.

    Raises:
        SettingsError: an unknown config key or checkpoint, or a wrong value.
    """

    def __init__(self, params: Params, config: Mapping[str, object] = {}) -> None:
        asked = Config.of(config)
        self.params, self.scale, self.jobs_per_gpu, self._seeds = params, params.scale, asked.jobs_per_gpu, asked.seeds
        self.selected: tuple[str, ...] | None = None
        if asked.checkpoints is not None:
            self.selected = tuple(name.strip() for name in asked.checkpoints.split(","))
            for name in self.selected:
                look_up("--config checkpoints:", self.scale.checkpoints, name)
        self.figures = [figure.number for figure in params.figures.figures]

    @staticmethod
    def pattern(names: Iterable[object]) -> str:
        """Return a regular expression that matches exactly the given names, longest first."""
        return "|".join(re.escape(str(name)) for name in sorted(map(str, names), key=len, reverse=True)) or "(?!)"

    def seeds(self, task: str) -> int:
        """Return the number of trials of a task's quantized runs."""
        return self._seeds or self.params.seeds(task)

    @property
    def size_seeds(self) -> int:
        """The number of trials per point of figure 7."""
        return self._seeds or self.scale.figures.sample_size_seeds

    def _chosen(self, checkpoint: str) -> bool:
        return self.selected is None or checkpoint in self.selected

    def trials(self, task: str, checkpoint: str, recipe: str, seeds: int | None = None) -> list[Run]:
        """Return one run per seed; a full-precision recipe has a single run.

        Raises:
            SettingsError: the scale lacks the checkpoint.
        """
        self.params.checkpoint(checkpoint)
        count = (seeds or self.seeds(task)) if self.params.recipe(recipe).quantized else 1
        return [Run(self.scale.name, task, checkpoint, recipe, seed) for seed in range(count)]

    def table_runs(self, number: int) -> list[Run]:
        """Return the evaluated runs of a table's selected checkpoints, each once.

        Raises:
            SettingsError: the scale lacks some of the table's tasks or checkpoints.
        """
        table = self.params.tables[number]
        for task, checkpoint in table.pairs():
            look_up(f"{table.place}: scale {self.scale.name} lacks task", self.scale.tasks, task)
            look_up(f"{table.place}: scale {self.scale.name} lacks checkpoint", self.scale.checkpoints, checkpoint)
        cells = [cell for cell in table.cells() if self._chosen(cell.checkpoint)]
        runs = [run for cell in cells for run in self.trials(cell.task, cell.checkpoint, cell.row.recipe)]
        return list(dict.fromkeys(runs))

    def complete_tables(self) -> list[int]:
        """Return the default tables: this scale has all their tasks and checkpoints.

        Tables without a selected checkpoint are left out.
        """
        complete = {number: table.pairs() for number, table in self.params.tables.items() if self._has(table.pairs())}
        return [number for number, pairs in complete.items() if any(self._chosen(name) for _, name in pairs)]

    def complete_figures(self) -> list[int]:
        """Return the figures whose tasks and checkpoints this scale has, with all checkpoints selected."""
        figures = self.params.figures.figures
        shown = {figure.number: [run[:2] for run in self.params.figure(figure)] for figure in figures}
        complete = {number: pairs for number, pairs in shown.items() if self._has(pairs)}
        return [number for number, pairs in complete.items() if all(self._chosen(name) for _, name in pairs)]

    def files(self, tables: Iterable[int], figures: Iterable[int]) -> list[str]:
        """Return the file names of tables and figures in ``results/``."""
        names = [f"{self.params.tables[number].name}.{kind}" for number in tables for kind in ("csv", "tex", "html")]
        return names + [f"figure{number}.{kind}" for number in figures for kind in ("pdf", "png")]

    def _has(self, pairs: Iterable[tuple[str, str]]) -> bool:
        return all(task in self.scale.tasks and name in self.scale.checkpoints for task, name in pairs)

    def pretrained(self) -> dict[str, str]:
        """Return the selected checkpoints that are trained from scratch -> the first task of their training."""
        settings = {name: checkpoint.pretrain for name, checkpoint in self.scale.checkpoints.items()}
        return {name: task for name, task in settings.items() if task and self._chosen(name)}

    def figure_runs(self, number: int) -> list[Run]:
        """Return a figure's runs: quantized runs for grid shifts, evaluated runs for figure 7.

        Raises:
            SettingsError: the figure shows a checkpoint that is not selected.
        """
        figure = self.params.figures[number]
        if isinstance(figure, ByBits):
            return self.table_runs(figure.table)
        runs = self.params.figure(figure)
        if lacking := [checkpoint for _, checkpoint, _ in runs if not self._chosen(checkpoint)]:
            raise SettingsError(f"figure {number} shows {lacking[0]}; add it to --config checkpoints=")
        seeds = self.size_seeds if isinstance(figure, SampleSize) else 1
        return [run for of in runs for run in self.trials(*of, seeds)]

    @functools.cache  # noqa: B019 - a Plan lives as long as the process
    def hyper(self, run: Run) -> tuple[Hyper, dict[str, str]]:
        """Return a run's hyper-parameters, and each parameter's source."""
        return hyper(self.params, run)

    def gate(self, run: Run) -> str:
        """Return the file that exists once a run's full-precision network has passed its gate."""
        return layout.gate_file(run.scale, run.task, run.checkpoint)

    def samples_dir(self, run: Run) -> str:
        """Return the directory of a run's calibration samples."""
        return layout.calibration_dir(run.scale, run.task, self.hyper(run)[0].samples, run.seed)

    def network_dir(self, run: Run) -> str:
        """Return the directory of a run's evaluated network: the quantized network, or the checkpoint itself."""
        if self.params.recipe(run.recipe).quantized:
            return layout.quantized_dir(run)
        return layout.checkpoint_dir(run.scale, run.task, run.checkpoint)

    def resources(
        self, stage: Stage, task: str | None = None, checkpoint: str | None = None, attempt: int = 1
    ) -> Resources:
        """Return a job's threads, GPU, memory and minutes; a later attempt gets more memory and minutes."""
        asked = self.params.resources(stage, task, checkpoint)
        return asked.model_copy(update={"mem_mb": attempt * asked.mem_mb, "runtime": attempt * asked.runtime})

    def seconds(self, step: str, run: Run) -> float | None:
        """Return the expected seconds of a run's step on one core, if the scale's ``resources`` or ``needs`` have them.

        A step is finetune, reconstruct, evaluate, or another one, such as gate, that evaluates a network.
        """
        stage: Stage = "finetune" if step == "finetune" else "reconstruct" if step == "reconstruct" else "evaluate"
        seconds = self.params.resources(stage, run.task, run.checkpoint).seconds
        if stage != "reconstruct" or seconds is None:
            return seconds
        recipe, hyper = self.params.recipe(run.recipe), self.hyper(run)[0]
        weights = 0 if recipe.rounding in UNLEARNED else hyper.iters
        return seconds * max(SHORTEST, weights + (hyper.a_iters if recipe.setting == "B" and recipe.a_bits else 0))

    def origins(self, task: str, checkpoint: str) -> dict[str, str]:
        """Return a network's inputs: any of ``data``, ``source``, ``adapter`` and ``pretrained``."""
        settings = self.params.checkpoint(checkpoint)
        made_from = {}
        if self.params.train(task, checkpoint) is not None:
            made_from["data"] = layout.data_dir(self.scale.name, task)
        for name in ("source", "adapter"):
            if source := getattr(settings, name):
                made_from[name] = layout.source_file(source)
        if settings.pretrain and settings.pretrain != task:
            made_from["pretrained"] = layout.checkpoint_dir(self.scale.name, settings.pretrain, checkpoint)
        return made_from

    def shown(self, tables: Iterable[int], figures: Iterable[int]) -> Iterator[tuple[str, list[Run], bool]]:
        """Yield each table's and figure's name, its runs, and whether it needs their evaluations."""
        for number in tables:
            yield self.params.tables[number].name, self.table_runs(number), True
        for number in figures:
            yield f"figure{number}", self.figure_runs(number), not isinstance(self.params.figures[number], GridShifts)

    def outputs(self, run: Run, evaluated: bool) -> Iterator[Output]:
        """Yield all inputs and outputs of a run, its evaluation only with ``evaluated``."""
        recipe = self.params.recipe(run.recipe)
        network = dataclasses.replace(run, recipe=layout.FULL_PRECISION, seed=0)
        yield Output("data", run, layout.data_dir(run.scale, run.task))
        yield from self._networks(network)
        if recipe.quantized:
            yield Output("gate", network, self.gate(run))
        if recipe.setting:
            yield Output("calibrate", run, self.samples_dir(run))
            yield Output("reconstruct", run, layout.quantized_dir(run))
        for name in recipe.select:
            yield from self.outputs(dataclasses.replace(run, recipe=name), evaluated=False)
        if recipe.select:
            yield Output("choice", run, layout.quantized_dir(run))
        if evaluated:
            yield Output("evaluate", run, layout.evaluated_dir(run))

    def _networks(self, network: Run) -> Iterator[Output]:
        """Yield a full-precision network, after its training data and after the outputs of its pretrained network."""
        origins = self.origins(network.task, network.checkpoint)
        if "pretrained" in origins:
            first = self.params.checkpoint(network.checkpoint).pretrain or ""
            yield from self._networks(dataclasses.replace(network, task=first))
        if "data" in origins:
            yield Output("data", network, origins["data"])
        yield Output("finetune", network, layout.checkpoint_dir(network.scale, network.task, network.checkpoint))
