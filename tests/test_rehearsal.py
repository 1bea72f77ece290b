"""A scale made small keeps everything but sizes; its stand-ins are what the real rules take; one table runs."""

import csv
import dataclasses
import gzip
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import safetensors
import snakemake.cli
import torch
from PIL import Image
from pyarrow import parquet

from flexround import imports
from flexround.errors import InputError, SettingsError
from flexround.io import sources
from flexround.models import build, tokenizer_files
from flexround.models.checkpoints import read_foreign
from flexround.rehearsal import data, project, scale
from flexround.settings import outputs
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.tasks import protocol
from flexround.tools import rehearse

PAPER = load_params("paper")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rehearsal") / "here"
    return directory, project.build(directory, "paper")


def test_only_sizes_and_budgets_differ(built):
    _, small = built
    assert small.scale.comparable == PAPER.scale.comparable
    assert small.scale.tasks.keys() == PAPER.scale.tasks.keys()
    for name, task in PAPER.scale.tasks.items():
        changed = {k for k, v in small.scale.tasks[name].options.items() if task.options.get(k) != v}
        assert changed <= {*scale.OPTIONS[task.module], "heldout"}
        assert small.scale.tasks[name].model_copy(update={"options": task.options}) == task
    for name, checkpoint in PAPER.scale.checkpoints.items():
        own = small.scale.checkpoints[name]
        assert own.model.args.keys() >= checkpoint.model.args.keys()
        machine = {"model", "mem_mb", "runtime"}
        assert own.model_dump(exclude=machine) == checkpoint.model_dump(exclude=machine)
    for task, checkpoint in PAPER.pairs():
        theirs, own = PAPER.gate(task, checkpoint), small.gate(task, checkpoint)
        assert own.metric == theirs.metric
        trained, here = PAPER.train(task, checkpoint), small.train(task, checkpoint)
        assert (trained is None) == (here is None)
        assert {k for k in trained or {} if trained[k] != here[k]} <= set(scale.TRAIN)
    assert small.shown()
    for run in (Run("paper", *shown, 0) for shown in PAPER.shown() if PAPER.recipe(shown[2]).setting):
        theirs, own = hyper(PAPER, run)[0].model_dump(), hyper(small, run)[0].model_dump()
        assert {key for key in theirs if theirs[key] != own[key]} <= set(scale.HYPER)


def test_every_job_of_the_scale_has_its_place_in_the_rehearsal(built):
    full, small = Plan(PAPER), Plan(built[1])
    shown, here = (
        {name: runs for name, runs, _ in outputs.shown(plan, plan.complete_tables(), plan.complete_figures())}
        for plan in (full, small)
    )
    assert here == {name: [dataclasses.replace(run, scale=scale.NAME) for run in runs] for name, runs in shown.items()}
    drawn = (run for number in small.complete_figures() for run in small.figure_runs(number))
    assert max(small.hyper(run)[0].samples for run in drawn) <= scale.IMAGES["train"]


def test_every_source_is_there_and_as_its_row_says(built):
    directory, _ = built
    rows = project.read_yaml(directory / "params/sources.yaml")
    used = [name for name, source in PAPER.sources.items() if (directory / "results/sources" / source.file).exists()]
    others = {name for name, source in PAPER.sources.items() if source.inside or source.path}
    assert used == [name for name in PAPER.sources if name not in others]
    for name in used:
        source = PAPER.sources[name]
        pinned = source.model_validate(rows[name])
        found = sources.verify(name, pinned, directory / "results/sources" / source.file)
        if source.revision.startswith(sources.PREFIX):
            assert pinned.revision != source.revision
            assert found.startswith(pinned.revision.removeprefix(sources.PREFIX))


def keys(path):
    with safetensors.safe_open(path, "pt") as file:
        return set(file.keys())


def test_weights_have_the_real_names(built):
    root = built[0] / "results/sources"
    bert = keys(root / "hub/bert-base-uncased/model.safetensors")
    assert {"bert.embeddings.LayerNorm.gamma", "cls.predictions.bias", "bert.pooler.dense.weight"} <= bert
    assert "transformer.h.0.attn.attention.masked_bias" in keys(root / "hub/gpt-neo-2.7b/model.safetensors")
    assert {"h.0.attn.bias", "wte.weight"} <= keys(root / "hub/gpt2-large/model.safetensors")
    opt = read_foreign(root / "hub/opt-1.3b/pytorch_model.bin")
    assert opt["model.decoder.layers.0.fc1.weight"].dtype == torch.float16
    index = json.loads((root / "llama/llama-33b/model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 1
    flat = read_foreign(root / "brecq/mobilenetv2.pth.tar")
    assert {int(name.split(".")[3]) for name in flat if name.startswith("features.2.conv.")} == {0, 1, 3, 4, 6, 7}
    assert "layer1.0.conv1.weight" in read_foreign(root / "torchvision/resnet18-f37072fd.pth")
    adapter = read_foreign(root / "lora/gpt2_md_lora_webnlg.pt")
    assert "transformer.h.0.attn.c_attn.lora_A" in adapter


IMPORTED = {name: task for task, name in PAPER.pairs() if PAPER.checkpoint(name).loader}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_directory_is_imported_with_the_tokens_that_its_tokenizer_adds(name, built, tmp_path):
    directory, small = built
    checkpoint = small.scale.checkpoints[name]
    model = build.architecture(checkpoint, protocol.named(small.scale, IMPORTED[name]).head)
    path = directory / "results/sources" / small.sources[checkpoint.source].file
    imports.load(checkpoint.loader)(model, path, tmp_path)
    tokenizer = tokenizer_files.load(tmp_path / "tokenizer.json")
    tokenizer.no_padding()
    added = {"bert": ["[CLS]", "[SEP]"], "opt": ["</s>"], "llama": ["<s>"]}.get(name.partition("-")[0], [])
    assert tokenizer.encode("").tokens == added
    assert tokenizer.get_vocab_size() <= model.config.vocab_size


def test_data_sets_are_in_their_real_layouts(built):
    root = built[0] / "results/sources"
    assert parquet.read_table(root / "glue/mnli/validation_matched-00000-of-00001.parquet").column_names == [
        *("premise", "hypothesis", "label", "idx")
    ]
    with gzip.open(root / "c4/en/c4-train.00000-of-01024.json.gz", "rt") as file:
        assert json.loads(next(file)).keys() == {"text", "timestamp", "url"}
    assert (root / "ptb/ptb.train.txt").read_text().startswith(" ")
    images = [Image.open(path) for path in (root / "imagenet/train").rglob("*.JPEG")]
    assert {(image.mode, image.format) for image in images} == {
        *(("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"))
    }
    entry = json.loads((root / "webnlg/test.json").read_text())["entries"][0]["1"]
    assert {"category", "lexicalisations", "modifiedtripleset"} <= entry.keys()


def test_what_has_no_small_form_is_named(tmp_path):
    task = PAPER.scale.tasks["squad"].model_copy(update={"module": "mine:Task"})
    changed = PAPER._replace(scale=PAPER.scale.model_copy(update={"tasks": {"squad": task}}))
    with pytest.raises(SettingsError, match=r"task squad: no small options for mine:Task; add them to .*OPTIONS"):
        scale.smaller(changed, "paper")
    with pytest.raises(SettingsError, match="no stand-in for the data set 'mine'"):
        data.write("mine", PAPER.sources["squad"], tmp_path / "mine")


def test_another_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not empty and no rehearsal"):
        project.build(tmp_path, "paper")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


REHEARSE = [sys.executable, "-m", "flexround.tools.rehearse", "--table", "1", "--seeds", "1", "--cores", "2"]
BRIEF = """
name: brief
extends: paper
shows: {tables: brief, published: false}
tables:
  - caption: One network of the paper.
    descriptive: [Method, Bits]
    columns: [{name: BERT-Base, task: squad, checkpoint: bert-base, metrics: [f1]}]
    groups:
      - {compare: false, rows: [{recipe: full-precision, method: Full-precision, bits: 32/32}]}
      - {rows: [{recipe: q-flexround-w8a8, method: Q + FlexRound, bits: 8/8}]}
    tolerance: {f1: 0.5}
"""


def test_gpus_are_a_limit_beside_the_goals(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(
        rehearse.subprocess, "run", lambda command, **_: commands.append(command) or SimpleNamespace(returncode=0)
    )
    assert rehearse.snakemake(tmp_path, ["all", "results/report.html"], "2", 3, 1, 0) == 0
    _, given = snakemake.cli.parse_args(commands[0][3:])
    assert given.targets == ["all", "results/report.html"]
    assert {name: limit.value for name, limit in given.resources.items()} == {"gpu": 3}
    assert given.config == ["scale=rehearsal", "seeds=1"]


def test_two_rehearsals_in_one_directory_are_refused(tmp_path):
    with rehearse.alone(tmp_path), pytest.raises(InputError, match=f"{tmp_path}: a rehearsal is at work there"):
        rehearse.run(rehearse.parser().parse_args(["--directory", str(tmp_path)]))
    assert not list(tmp_path.iterdir())


def test_a_table_is_rehearsed_where_an_earlier_rehearsal_was_ended(built, tmp_path):
    directory = built[0]
    locks = directory / ".snakemake/locks"  # as Snakemake leaves them when the power is cut
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/brief1.csv\n")
    (tmp_path / "brief.yaml").write_text(BRIEF)
    command = [*REHEARSE, "--scale", tmp_path / "brief.yaml", "--directory", directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything ran" in done.stdout
    rows = list(csv.DictReader((directory / "results/brief1.csv").open()))
    assert len(rows) == 2
    assert {row["scale"] for row in rows} == {scale.NAME}
    assert all(row["value"] for row in rows)
