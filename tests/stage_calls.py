"""The jobs of a scale run in this process, each once, as their rules would."""

import contextlib
import importlib
from argparse import Namespace
from pathlib import Path

from flexround.jobs.resolve import Jobs
from flexround.jobs.shown import Shown
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan


def call(stage, inputs, **options):
    """Run a stage with its job file."""
    usual = {"threads": 1, "state": Path(".state"), "cache_mb": None, "preflight": False}
    importlib.import_module(f"flexround.stages.{stage}").run(Namespace(job=Path(inputs["job"]), **usual | options))


class Work:
    """What a scale makes in a directory; what a job needs is made before it, and nothing twice.

    Methods return absolute directories, or the file of a gate.
    """

    def __init__(self, scale, root, params=None):
        self.root, self.params = Path(root), params or load_params(str(scale))
        self.plan = Plan(self.params)
        self.jobs, self.shown = Jobs(self.plan), Shown(self.plan)

    def run(self, task, checkpoint, recipe="full-precision", seed=0):
        return Run(self.params.scale.name, task, checkpoint, recipe, seed)

    def do(self, stage, *arguments, out, again=False, **options):
        """Run a stage's job unless its output is there; return the output's path."""
        with contextlib.chdir(self.root):
            if again or not Path(out).exists():
                inputs = getattr(self.shown if hasattr(self.shown, stage) else self.jobs, stage)(*arguments)
                call(stage, inputs, **options)
        return self.root / out

    def data(self, task, **options):
        out = self.layout("data_dir", task)
        return self.do("data", task, out=out, **options)

    def weights(self, task, checkpoint, **options):
        origins = self.plan.origins(task, checkpoint)
        if "data" in origins:
            self.data(task)
        if "pretrained" in origins:
            self.weights(self.params.checkpoint(checkpoint).pretrain, checkpoint)
        return self.do("finetune", task, checkpoint, out=self.layout("checkpoint_dir", task, checkpoint), **options)

    def gate(self, task, checkpoint, **options):
        self.data(task), self.weights(task, checkpoint)
        return self.do("gate", task, checkpoint, out=self.layout("gate_file", task, checkpoint), **options)

    def samples(self, task, samples, seed=0, **options):
        self.data(task)
        out = self.layout("calibration_dir", task, samples, seed)
        return self.do("calibrate", task, samples, seed, out=out, **options)

    def quantized(self, task, checkpoint, recipe, seed=0, **options):
        run = self.run(task, checkpoint, recipe, seed)
        out = self.plan.network_dir(run)
        names = self.params.recipe(recipe).select
        if names:
            for name in names:
                self.quantized(task, checkpoint, name, seed)
            return self.do("select", run, out=out, **options)
        self.gate(task, checkpoint)
        self.samples(task, self.plan.hyper(run)[0].samples, seed)
        return self.do("reconstruct", run, out=out, **options)

    def evaluated(self, task, checkpoint, recipe="full-precision", seed=0, **options):
        run = self.run(task, checkpoint, recipe, seed)
        self.data(task)
        make = self.quantized if self.params.recipe(recipe).quantized else self.weights
        make(*((task, checkpoint, recipe, seed) if self.params.recipe(recipe).quantized else (task, checkpoint)))
        out = f"results/{run.scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}"
        return self.do("evaluate", run, out=out, **options)

    def layout(self, name, *parts):
        from flexround.settings import layout

        return getattr(layout, name)(self.params.scale.name, *parts)
