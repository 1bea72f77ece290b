"""The rehearsal has every table, figure and network of the paper's scale, made small; one run is made."""

from argparse import Namespace

import pytest
from stage_calls import Work

from flexround.models import build
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.params import hyper
from flexround.stages import finetune
from flexround.tasks import protocol

PAPER, SMALL = load_params("paper"), load_params("rehearsal")
OF_SIZE = {"samples", "batch", "iters", "a_iters", "a_init_samples"}


def test_all_of_the_paper_is_rehearsed_but_sizes_of_figure_7():
    left = set(PAPER.shown()) - set(SMALL.shown())
    assert set(SMALL.shown()) < set(PAPER.shown())
    assert {recipe.rpartition("-n")[2] for _, _, recipe in left} == {"2048", "512", "256", "128", "64"}


def test_sizes_and_budgets_alone_differ():
    for pair in PAPER.pairs():
        trained, here = PAPER.train(*pair) or {}, SMALL.train(*pair) or {}
        assert here.keys() == trained.keys()
        assert {key for key in trained if trained[key] != here[key]} <= {"epochs", "batch"}
        assert SMALL.gate(*pair).metric == PAPER.gate(*pair).metric
    for shown in (each for each in SMALL.shown() if PAPER.recipe(each[2]).setting):
        theirs, own = (hyper(params, Run("any", *shown, 0))[0].model_dump() for params in (PAPER, SMALL))
        assert {key for key in theirs if theirs[key] != own[key]} <= OF_SIZE
        assert own["samples"] <= 40


IMPORTED = {name: task for task, name in SMALL.pairs()}


@pytest.mark.parametrize("name", IMPORTED)
def test_every_network_is_that_of_its_file(name, tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "SOURCES", tmp_path)
    checkpoint = SMALL.checkpoint(name)
    source = SMALL.sources[checkpoint.source]
    (tmp_path / source.file).parent.mkdir()
    (tmp_path / source.file).symlink_to(ROOT / source.inside)
    model = build.architecture(checkpoint, protocol.named(SMALL.scale, IMPORTED[name]).head)
    job = Namespace(checkpoint=checkpoint, origins=SMALL.sources, out=tmp_path)
    assert finetune.import_source(job, model)["source"]["sha256"] == source.sha256


class Rehearsal(Work):
    """The jobs of the rehearsal, with its own files instead of the small data sets of other tests."""

    def data(self, task):
        for name in (*self.params.scale.tasks[task].sources, *self.params.checkpoint("resnet18-brecq").sources):
            self.do("fetch", name, out=layout.source_file(name))
        return self.do("data", task, out=self.place("data_dir", task))


def test_a_run_is_rehearsed(tmp_path):
    metrics = Rehearsal("rehearsal", tmp_path, SMALL).metrics("imagenet", "resnet18-brecq", "q-flexround-w8a8")
    assert metrics["n_examples"]["top1"] == 10
