"""The digests miss nothing: every file of ours whose code a stage really runs is among those that they cover."""

import gc
import sys
from pathlib import Path

import pytest
import stage_calls
from stage_calls import Work

from flexround.jobs import codefile
from flexround.settings import reach

TESTS = Path(__file__).parent


class Watch:
    """Runs stages and keeps, for each, the files of ours whose code ran and that its digests don't cover."""

    def __init__(self, monkeypatch):
        self.stages, self.missed, self.seen = [], [], 0
        self.call, self.closure, self.covered = stage_calls.call, reach.closure, set()
        monkeypatch.setattr(stage_calls, "call", self.watched)
        monkeypatch.setattr(reach, "closure", self.planned)
        monkeypatch.setattr(codefile, "contents", codefile.contents.__wrapped__)  # not those of an earlier test

    def planned(self, *starts):
        found = self.closure(*starts)
        self.covered = {module.path for module in found}
        return found

    def watched(self, stage, inputs, **options):
        if stage == "gate":  # depends on no code, on purpose
            return self.call(stage, inputs, **options)
        assert reach.PACKAGE / f"stages/{stage}.py" in self.covered
        ran = set()
        gc.collect()  # generators that an earlier stage left are closed by running them
        sys.settrace(lambda frame, *_: ran.add(frame.f_code.co_filename))  # when a function begins
        try:
            self.call(stage, inputs, **options)
        finally:
            sys.settrace(None)
        ours = {path for path in map(Path, ran) if path.is_relative_to(reach.PACKAGE)}
        self.stages.append(stage)
        self.seen += len(ours)
        self.missed += [(stage, path) for path in ours - self.covered]


@pytest.mark.parametrize(
    ("scale", "task", "checkpoint", "recipes"),
    [
        ("smoke", "imagenet", "mobilenetv2-brecq", ["cle-b-flexround-w4"]),
        ("text_scale", "glue-rte", "bert-base", ["q-flexround-w8a8-tuned"]),
        ("commonsense_scale", "commonsense", "llama-7b", ["q-adaround-w8a8"]),
    ],
)
def test_every_file_that_a_stage_runs_is_in_its_digests(tmp_path, monkeypatch, scale, task, checkpoint, recipes):
    watch, work = Watch(monkeypatch), Work(TESTS / f"{scale}.yaml", tmp_path)
    for recipe in ("full-precision", *recipes):
        work.evaluated(task, checkpoint, recipe)
    assert {"data", "finetune", "calibrate", "reconstruct", "evaluate"} <= {*watch.stages}
    assert watch.seen > 10 * len(watch.stages)
    assert not watch.missed
