"""Which runs a table or figure needs, and what each run reads: what the Snakefile asks. No torch here."""

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path

from flexround import artifacts
from flexround.errors import SettingsError, suggest
from flexround.provenance import source_files
from flexround.seeding import derive
from flexround.settings import layout
from flexround.settings.additions import OwnRow
from flexround.settings.layout import FULL_PRECISION, ROOT, Run
from flexround.settings.load import Params, hyper
from flexround.settings.schema import Resources

CONFIG_KEYS = ("scale", "seeds", "own")


class Plan:
    """The work of one scale.

    Args:
        params: validated settings.
        seeds: trials per quantized run, or None for the scale's number.
        config: Snakemake's config; only ``scale``, ``seeds`` and ``own`` are known.

    Raises:
        SettingsError: an unknown config key or a number of seeds that is not a positive whole number.
    """

    def __init__(self, params: Params, seeds: object = None, config: Iterable[str] = ()) -> None:
        unknown = [key for key in config if key not in CONFIG_KEYS]
        if unknown:
            raise SettingsError(f"--config {suggest(unknown[0], CONFIG_KEYS)}")
        if seeds is not None and (not str(seeds).isdecimal() or int(str(seeds)) < 1):
            raise SettingsError(f"--config seeds={seeds!r}: give a whole number of at least 1")
        self.params, self.scale = params, params.scale
        self.seeds = int(str(seeds)) if seeds is not None else params.scale.seeds
        self.figures = [*params.figures.shifts, params.figures.sample_size.number]

    @staticmethod
    def pattern(names: Iterable[object]) -> str:
        """Return a regular expression that matches exactly these names, longest first."""
        return "|".join(re.escape(str(name)) for name in sorted(map(str, names), key=len, reverse=True)) or "(?!)"

    def trials(self, task: str, checkpoint: str, recipe: str, seeds: int | None = None) -> list[Run]:
        """Return a run per seed; what quantizes nothing has one.

        Raises:
            SettingsError: the scale does not have the checkpoint.
        """
        self.params.checkpoint(checkpoint)
        count = (seeds or self.seeds) if self.params.recipe(recipe).quantized else 1
        return [Run(self.scale.name, task, checkpoint, recipe, seed) for seed in range(count)]

    def table_runs(self, number: int) -> list[Run]:
        """Return the evaluated runs that a table is made of, each once.

        Raises:
            SettingsError: the scale lacks some of its tasks or checkpoints.
        """
        table = self.params.tables[number]
        if not self._has(table.pairs()):
            tables = ", ".join(map(str, self.complete_tables()))
            raise SettingsError(f"table {number}: scale {self.scale.name} lacks tasks or models; it can make {tables}")
        cells = table.cells()
        runs = [run for cell in cells for run in self.trials(cell.task, cell.checkpoint, cell.row.recipe)]
        return list(dict.fromkeys(runs))

    def complete_tables(self) -> list[int]:
        """Return the tables that this scale has all tasks and checkpoints for: what is made if nothing is named."""
        return [number for number, table in self.params.tables.items() if self._has(table.pairs())]

    def complete_figures(self) -> list[int]:
        """Return the figures that this scale has all tasks and checkpoints for."""
        specs = self.params.figures
        pairs = {
            number: [(panel.task, panel.checkpoint) for panel in panels] for number, panels in specs.shifts.items()
        }
        pairs[specs.sample_size.number] = [(specs.sample_size.task, specs.sample_size.checkpoint)]
        return [number for number in self.figures if self._has(pairs[number])]

    def _has(self, pairs: Iterable[tuple[str, str]]) -> bool:
        """Whether the scale has these tasks and checkpoints."""
        return all(task in self.scale.tasks and name in self.scale.checkpoints for task, name in pairs)

    def table_settings(self, number: int) -> str:
        """Return what a table shows that is in no run, as JSON: settings, rows of the user's. A rerun trigger."""
        table = self.params.tables[number]
        if not table.settings:
            return "".join(row.model_dump_json() for row in table.rows() if isinstance(row, OwnRow))
        options = {task: self.scale.tasks[task].options for task in table.tasks if task in self.scale.tasks}
        recipes = dict.fromkeys(setting.recipe for setting in table.settings if setting.recipe)
        runs = [Run(self.scale.name, *pair, recipe, 0) for recipe in recipes for pair in table.pairs()]
        hypers = [hyper(self.params, run)[0].model_dump() for run in runs]
        return json.dumps([options, [self.params.train(*pair) for pair in table.pairs()], hypers], sort_keys=True)

    def figure_runs(self, number: int) -> list[Run]:
        """Return the runs of a figure: quantized ones for grid shifts, evaluated ones for figure 7."""
        figures = self.params.figures
        if number in figures.shifts:
            return [Run(self.scale.name, p.task, p.checkpoint, p.recipe, 0) for p in figures.shifts[number]]
        spec, sizes = figures.sample_size, self.scale.figures.sample_sizes
        recipes = [spec.recipe(name, size) for name in spec.recipes for size in sizes]
        seeds = self.scale.figures.sample_size_seeds
        return [run for recipe in recipes for run in self.trials(spec.task, spec.checkpoint, recipe, seeds)]

    def gate(self, run: Run) -> Run:
        """Return the full-precision run that must be right before ``run`` is quantized."""
        return Run(run.scale, run.task, run.checkpoint, FULL_PRECISION, 0)

    @functools.cache  # noqa: B019 - a Plan lives as long as the process
    def settings(self, run: Run) -> str:
        """Return what a run's result depends on in params, as JSON: the rerun trigger of its rule."""
        recipe, checkpoint = self.params.recipe(run.recipe), self.params.checkpoint(run.checkpoint)
        parts = [recipe.model_dump_json(), checkpoint.model.model_dump_json()]
        if recipe.setting:
            parts.append(hyper(self.params, run)[0].model_dump_json())
        return "\n".join(parts)

    def evaluation(self, run: Run) -> str:
        """Return ``settings`` of a run, and the precision of its evaluation if it is not float32."""
        precision = self.params.checkpoint(run.checkpoint).evaluated
        return self.settings(run) + ("" if precision == "float32" else f"\n{precision}")

    def samples_dir(self, run: Run) -> str:
        """Return the directory of the calibration samples of a run."""
        return layout.calibration_dir(run.scale, run.task, hyper(self.params, run)[0].samples, run.seed)

    def launcher(self, stage: str) -> str:
        """Return how a stage's processes are started: one per GPU if it has several."""
        gpus = self.resources(stage).gpu
        return f"torchrun --standalone --nproc-per-node {gpus} -m" if gpus > 1 else "python -m"

    def resources(self, stage: str, checkpoint: str | None = None) -> Resources:
        """Return threads, gpu, memory and minutes of a stage, at least what a checkpoint needs."""
        found: Resources = self.scale.resources[stage]  # type: ignore[index]
        if checkpoint is None:
            return found
        large = self.params.checkpoint(checkpoint)
        minutes = large.runtime if stage == "reconstruct" else None
        more = {"mem_mb": max(found.mem_mb, large.mem_mb or 0), "runtime": max(found.runtime, minutes or 0)}
        return found.model_copy(update=more)

    @functools.cache  # noqa: B019
    def sources(self, stage: str, *targets: str) -> list[str]:
        """Return the source files a stage depends on, relative to the project where they lie in it.

        Args:
            stage: module under ``flexround.stages``.
            *targets: further ``package.module:name`` that the settings make the stage import.
        """
        files = source_files(f"flexround.stages.{stage}", *(target.partition(":")[0] for target in targets))
        return [str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file) for file in files]

    @functools.cache  # noqa: B019
    def code(self, stage: str, *targets: str) -> str:
        """Return a file that lists the sha256 of every source file a stage depends on, for the rule's inputs.

        One small file instead of some forty: Snakemake looks at every input of every waiting job again and again. It is
        written only when its content changes, so an edit, and nothing else, makes it newer than the stage's outputs: a
        user's module may be moved.
        """
        name = "-".join([stage, *(target.partition(":")[0].replace(".", "_") for target in targets)])
        path = Path(layout.CODE) / f"{derive(name):016x}-{stage}.txt"
        names = {file: Path(file).name if Path(file).is_absolute() else file for file in self.sources(stage, *targets)}
        lines = [f"{_hash(file)}  {name}\n" for file, name in names.items()]
        if not path.exists() or path.read_text() != "".join(lines):
            artifacts.write_text(path, "".join(lines))
        return str(path)

    def write_code(self) -> None:
        """Write the files of ``code`` that any run of this scale may need.

        Before the first rule: Snakemake lists a directory once, and takes what appears in it later for missing.
        """
        roundings = {target for name in self.params.recipes.recipes for target in self._rounding_target(name)}
        for task, spec in self.scale.tasks.items():
            self.code("data", spec.module)
            self.code("calibrate", spec.module)
            for checkpoint in self.scale.checkpoints:
                targets = self.model_targets(task, checkpoint)
                self.code("finetune", *targets)
                self.code("evaluate", *targets)
                for rounding in roundings:
                    self.code("reconstruct", *targets, rounding)

    def model_targets(self, task: str, checkpoint: str) -> list[str]:
        """Return the code that the settings of a task and a checkpoint name."""
        settings = self.params.checkpoint(checkpoint)
        model = settings.model
        named = [model.factory, model.blocks, model.equalization, settings.loader, settings.key_map]
        return [target for target in (*named, self.scale.tasks[task].module) if target]

    def task_files(self, task: str) -> list[str]:
        """Return the files of the project that a task's evaluation reads."""
        pattern = self.scale.tasks[task].files
        return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)) if pattern else []

    def origins(self, task: str, checkpoint: str) -> dict[str, str]:
        """Return the files a network is made from: any of ``data``, ``source``, ``adapter`` and ``pretrained``."""
        settings = self.params.checkpoint(checkpoint)
        found = {}
        if self.params.train(task, checkpoint) is not None:
            found["data"] = layout.data_dir(self.scale.name, task) + "/manifest.json"
        for name in ("source", "adapter"):
            if source := getattr(settings, name):
                found[name] = f"results/sources/{source}.json"
        if settings.pretrain and settings.pretrain != task:
            directory = layout.checkpoint_dir(self.scale.name, settings.pretrain, checkpoint)
            found["pretrained"] = f"{directory}/manifest.json"
        return found

    def training(self, task: str, checkpoint: str) -> str:
        """Return what a fine-tuned network depends on in params, as JSON: the rerun trigger of its rule."""
        settings = self.params.checkpoint(checkpoint)
        kept = settings.model_dump_json(exclude={"evaluated", "mem_mb", "runtime"})
        return kept + json.dumps(self.params.train(task, checkpoint), sort_keys=True)

    def rounding_targets(self, run: Run) -> list[str]:
        """Return the code of a run's rounding."""
        return self._rounding_target(run.recipe)

    def _rounding_target(self, recipe: str) -> list[str]:
        """Return the code of a recipe's rounding."""
        rounding = self.params.recipe(recipe).rounding
        return [self.params.rounding_target(rounding)] if rounding else []


@functools.cache
def _hash(file: str) -> str:
    """Return the sha256 of a source file, read once."""
    return artifacts.sha256(ROOT / file)
