"""The rehearsal has every table, figure and network of the paper's scale, made small; one table runs."""

import csv
import sys
from argparse import Namespace

import pytest
from project_copy import copy
from published import Clone

from flexround.models import build
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.params import hyper
from flexround.stages import finetune
from flexround.tasks import protocol

PAPER, SMALL = load_params("paper"), load_params("rehearsal")
OF_SIZE = {"samples", "batch", "iters", "a_iters", "a_init_samples"}
BRIEF = """
name: brief
extends: rehearsal
shows: {tables: brief, published: false}
tables:
  - caption: One network of the paper.
    descriptive: [Method, Bits]
    columns: [{name: ResNet-18, task: imagenet, checkpoint: resnet18-brecq, metrics: [top1]}]
    groups:
      - {compare: false, rows: [{recipe: full-precision, method: Full-precision, bits: 32/32}]}
      - {rows: [{recipe: q-flexround-w8a8, method: Q + FlexRound, bits: 8/8}]}
    tolerance: {top1: 0.5}
"""


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
def test_every_network_is_that_of_its_file(name, tmp_path):
    checkpoint = SMALL.checkpoint(name)
    source = SMALL.sources[checkpoint.source]
    (tmp_path / source.file).parent.mkdir()
    (tmp_path / source.file).symlink_to(ROOT / source.inside)
    model = build.architecture(checkpoint, protocol.named(SMALL.scale, IMPORTED[name]).head)
    job = Namespace(checkpoint=checkpoint, sources=tmp_path, origins=SMALL.sources, out=tmp_path)
    assert finetune.import_source(job, model)["source"]["sha256"] == source.sha256


def test_a_table_is_rehearsed(tmp_path):
    project = Clone(copy(tmp_path))
    (tmp_path / "brief.yaml").write_text(BRIEF)
    command = "snakemake --cores 2 results/brief1.csv --config scale=brief.yaml"
    project.run(sys.executable, "-m", *command.split())
    rows = list(csv.DictReader((tmp_path / "results/brief1.csv").open()))
    assert len(rows) == 2
    assert all(row["value"] for row in rows)
