"""The jobs of a scale run in this process, each once, as their rules would."""

import contextlib
from argparse import Namespace
from pathlib import Path

import small

from flexround import imports
from flexround.io import artifacts
from flexround.jobs import command, resolve
from flexround.models import build
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tasks import protocol

# Chains of jobs: scale, network, recipes.
CHAINS = {
    "images": ("smoke", ("imagenet", "mobilenetv2-brecq"), ("q-flexround-w4a4", "b-adaround-w4")),
    "glue": ("text_scale", ("glue-rte", "bert-base"), ("q-flexround-w8a8", "b-adaround-w8a8")),
    "squad": ("text_scale", ("squad", "bert-base"), ("q-flexround-w8a8",)),
    "language": ("lm_scale", ("wikitext2", "gpt-neo-125m"), ("q-adaround-w8a8", "b-flexround-w8a8")),
    "webnlg": ("webnlg_scale", ("webnlg", "gpt2-medium"), ("q-flexround-w8a8",)),
    "questions": ("commonsense_scale", ("commonsense", "llama-7b"), ("q-adaround-w8a8",)),
}


def call(stage, file, **options):
    """Run a stage with its job file."""
    usual = {"threads": 1, "gpus": 0, "jobs_per_gpu": 1, "state": Path(".state")}
    usual |= {"gpu_cache_mb": None, "preflight": False, "confirm": lambda: None}
    imports.load(command.target(stage))(Namespace(job=Path(file), **usual | options))


def exit_code(tool, *arguments):
    """Run a tool with the arguments of its command line; return its exit code."""
    try:
        tool.run(tool.parser().parse_args(arguments))
    except SystemExit as ended:
        return ended.code
    return 0


class Work:
    """What a scale makes in a directory; what a job needs is made before it, and nothing twice.

    Methods return absolute directories, or the file of a gate.
    """

    def __init__(self, scale, root, params=None):
        self.root, self.params = Path(root), params or load_params(str(scale))
        self.plan = Plan(self.params)

    def run(self, task, checkpoint, recipe="full-precision", seed=0):
        return Run(self.params.scale.name, task, checkpoint, recipe, seed)

    def inputs(self, stage, *arguments):
        """Write the files of a job; return the name of its job file, and what its rule reads."""
        return resolve.job(self.plan, stage, *arguments)

    def do(self, stage, *arguments, out, again=False, **options):
        """Run a stage's job unless its output is there; return the output's path."""
        with contextlib.chdir(self.root):
            if again or not Path(out).exists():
                call(stage, self.inputs(stage, *arguments).file, **options)
        return self.root / out

    def data(self, task, **options):
        settings = self.params.scale.tasks[task]
        if small.write(self.root / layout.SOURCES, settings.module):
            for name in settings.sources:
                artifacts.write_json(self.root / layout.source_file(name), {"sha256": "of a small data set"})
        for name in settings.sources:
            self.do("fetch", name, out=layout.source_file(name))
        return self.do("data", task, out=self.place("data_dir", task), **options)

    def weights(self, task, checkpoint, **options):
        origins = self.plan.origins(task, checkpoint)
        if "data" in origins:
            self.data(task)
        if "pretrained" in origins:
            self.weights(self.params.checkpoint(checkpoint).pretrain, checkpoint)
        return self.do("finetune", task, checkpoint, out=self.place("checkpoint_dir", task, checkpoint), **options)

    def gate(self, task, checkpoint, **options):
        self.data(task), self.weights(task, checkpoint)
        return self.do("gate", task, checkpoint, out=self.place("gate_file", task, checkpoint), **options)

    def samples(self, task, samples, seed=0, **options):
        self.data(task)
        return self.do(
            "calibrate", task, samples, seed, out=self.place("calibration_dir", task, samples, seed), **options
        )

    def quantized(self, task, checkpoint, recipe, seed=0, **options):
        run, names = self.run(task, checkpoint, recipe, seed), self.params.recipe(recipe).select
        for name in names:
            self.quantized(task, checkpoint, name, seed)
        if not names:
            self.gate(task, checkpoint), self.samples(task, self.plan.hyper(run)[0].samples, seed)
        return self.do("select" if names else "reconstruct", run, out=layout.quantized_dir(run), **options)

    def evaluated(self, task, checkpoint, recipe="full-precision", seed=0, **options):
        self.data(task)
        if self.params.recipe(recipe).quantized:
            self.quantized(task, checkpoint, recipe, seed)
        else:
            self.weights(task, checkpoint)
        run = self.run(task, checkpoint, recipe, seed)
        return self.do("evaluate", run, out=layout.evaluated_dir(run), **options)

    def metrics(self, *names, **options):
        """Return what an evaluation says of itself."""
        return artifacts.read_json(self.evaluated(*names, **options) / "metrics.json")

    def task(self, name):
        return protocol.named(self.params.scale, name)

    def model(self, task, checkpoint):
        """Return the full-precision network."""
        weights = self.weights(task, checkpoint)
        return build.full_precision(self.params.checkpoint(checkpoint), self.task(task).head, weights)

    def place(self, name, *parts):
        """Return a path of the layout."""
        return getattr(layout, name)(self.params.scale.name, *parts)
