"""The hashes miss nothing: every function of ours that a stage really runs is among those that its hash covers."""

import ast
import functools
import gc
import importlib
import inspect
import sys
from pathlib import Path

import pytest
import stage_calls
from stage_calls import Work

from flexround.mini import digits
from flexround.mini.tasks.digits import Digits
from flexround.quant.flexround import FlexRound
from flexround.settings import reach
from flexround.settings.reach import Symbol
from flexround.tasks.images.task import ImageTask

TESTS = Path(__file__).parent


@functools.cache
def places(path):
    """Return (first line, last line, name) of everything at the top of a file; decorators belong to it."""
    found = []
    for node in ast.parse(path.read_text()).body:
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        assigned = [leaf.id for target in targets if target for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
        found.append((first, node.end_lineno, getattr(node, "name", assigned[0] if assigned else "")))
    return found


def origin(code):
    """Return the symbol at the top of a module of ours that code belongs to, and the method if that is a class."""
    path = Path(code.co_filename)
    name = ".".join(path.relative_to(reach.PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    top = next(top for first, last, top in places(path) if first <= code.co_firstlineno <= last)
    method = code.co_qualname.split(".")[1] if code.co_qualname.startswith(f"{top}.") else None
    return Symbol(name, top), method


def covered(symbol, method, parts):
    """Whether what the walk found holds a function; of a task's class, the method itself."""
    if not parts.get(symbol):
        return False
    methods = reach.read_module(symbol.module).part(symbol.name).methods
    return method not in methods or methods[method] in parts[symbol]


class Watch:
    """Runs stages and keeps, for each, the functions of ours that ran and those that its hash covers."""

    def __init__(self, monkeypatch):
        self.stages, self.missed, self.seen = [], [], 0
        self.call, self.reached, self.starts = stage_calls.call, reach.walked, ()
        monkeypatch.setattr(stage_calls, "call", self.watched)
        monkeypatch.setattr(reach, "walked", self.started)

    def started(self, *starts):
        self.starts = starts
        return self.reached(*starts)

    def watched(self, stage, inputs, **options):
        if stage == "gate":  # depends on no code, on purpose
            return self.call(stage, inputs, **options)
        assert f"flexround.stages.{stage}:run" in self.starts
        parts, codes = reach._walk(*self.starts), set()
        for module in {symbol.module for symbol in parts}:  # what a module does once, when it is imported, is no run
            importlib.import_module(module)
        gc.collect()  # generators that an earlier stage left are closed by running them
        sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
        try:
            self.call(stage, inputs, **options)
        finally:
            sys.setprofile(None)
        ours = [code for code in codes if Path(code.co_filename).is_relative_to(reach.PACKAGE)]
        ran = {origin(code) for code in ours if code.co_flags & inspect.CO_OPTIMIZED}  # others are bodies of classes
        self.stages.append(stage)
        self.seen += len(ran)
        self.missed += [(stage, *symbol, method) for symbol, method in ran if not covered(symbol, method, parts)]


def test_a_function_that_the_walk_leaves_out_is_noticed():
    parts = reach._walk("flexround.stages.evaluate:run", "flexround.mini.tasks.digits:Digits")
    ours = (ImageTask.evaluate, ImageTask.finetune, Digits.prepare, FlexRound.forward, digits.make)
    assert [covered(*origin(each.__code__), parts) for each in ours] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("scale", "task", "checkpoint", "recipes"),
    [
        ("smoke", "imagenet", "mobilenetv2-brecq", ["cle-b-flexround-w4", "q-adaround-w4a4"]),
        ("text_scale", "glue-rte", "bert-base", ["q-flexround-w8a8-tuned"]),
        ("commonsense_scale", "commonsense", "llama-7b", ["q-adaround-w8a8"]),
    ],
)
def test_every_function_that_a_stage_runs_is_in_its_hash(tmp_path, monkeypatch, scale, task, checkpoint, recipes):
    watch, work = Watch(monkeypatch), Work(TESTS / f"{scale}.yaml", tmp_path)
    for recipe in ("full-precision", *recipes):
        work.evaluated(task, checkpoint, recipe)
    assert {"data", "finetune", "calibrate", "reconstruct", "evaluate"} <= {*watch.stages}
    assert watch.seen > 50 * len(watch.stages)
    assert not watch.missed
