"""What a table costs before anything is computed, and what tables share."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from flexround.errors import SettingsError
from flexround.jobs import resolve
from flexround.models import build
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.settings.schema import NeedRule
from flexround.tasks import protocol
from flexround.tools import cost
from flexround.tools import plan as stage

PARAMETERS = {  # of the published networks, tied weights counted once
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
}


@pytest.fixture(scope="module")
def paper():
    return Plan(load_params("paper"))


@pytest.fixture(scope="module", autouse=True)
def networks_counted_once():
    """Count each network once for all tests."""
    known, count = {}, cost.network

    def network(checkpoint, task):
        key = checkpoint.model.model_dump_json(), task.input_shape, task.head.get("head")
        if key not in known:
            known[key] = count(checkpoint, task)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "network", network)
        yield


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """Return a function that makes the report in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def make(*arguments):
        stage.run(stage.parser().parse_args(arguments))
        return capsys.readouterr().out

    return make


def jobs(text):
    """Return the jobs of each stage, and of them those done, in the order of the report."""
    rows = re.findall(r"^  \w+ +(\d+)   already on disk: (\d+)$", text, re.MULTILINE)
    return [int(count) for count, _ in rows], [int(done) for _, done in rows]


def table(text):
    """Return purpose -> hours of each family and together."""
    rows = re.findall(r"^  ([a-z]+(?:[ -][a-z]+)?) +((?:\d+\.\d\d +)*\d+\.\d\d)(?: h)?$", text, re.MULTILINE)
    return {name: row.split() for name, row in rows}


@pytest.mark.parametrize(
    ("arguments", "counted", "said"),
    [
        ("--table 3", [1, 3, 3, 5, 120, 123], ["results/sources/brecq/resnet18_imagenet.pth.tar from https://"]),
        # candidates of a choice: three tasks, five models, AdaRound and three rates of FlexRound
        ("--table 16 --seeds 1", [3, 15, 15, 3, 60, 45], []),
        ("--table 23 --seeds 1", [2, 6, 6, 2, 12, 18], ["missing on disk: 5", r"LLaMA-30B .*\(65.1 GB\)"]),
        ("--figure 7", [1, 1, 1, 35, 70, 70], []),
        ("--scale mini --table 3 --seeds 2", [1, 3, 3, 2, 48, 51], ["missing on disk: nothing"]),
        # of two quantized weights the gate measures the full precision alone
        ("--scale mini --figure 3", [1, 2, 2, 1, 2, 0], []),
    ],
)
def test_the_plan_of_a_table_or_figure(report, arguments, counted, said):
    text = report(*arguments.split())
    assert jobs(text) == (counted, [0] * 6)
    assert [line for line in said if not re.search(line, text)] == []


def test_tables_that_share_runs_pay_once(paper):
    count = [len(stage.planned(paper, numbers, [])) for numbers in ([1], [2], [1, 2])]
    assert max(count[:2]) < count[2] < sum(count[:2])


def test_what_a_reconstruction_does_not_depend_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = load_params("mini")
    run = Run("mini", "imagenet", "resnet18-brecq", "b-flexround-w4", 0)

    def job(params, run, **config):
        return Path(resolve.job(Plan(params, config), "reconstruct", run).file).read_text()

    before = job(params, run)
    assert job(params, run, jobs_per_gpu=3) == before
    checkpoints = params.scale.checkpoints
    halves = checkpoints["resnet18-brecq"].model_copy(update={"evaluated": "float16"})
    changes = {
        "seeds": 9,
        "checkpoints": checkpoints | {"resnet18-brecq": halves},
        "needs": (NeedRule(when={"stage": "reconstruct"}, set={"mem_mb": 9999, "runtime": 99}),),
    }
    assert job(params._replace(scale=params.scale.model_copy(update=changes)), run) == before


def test_a_pattern_matches_its_names_alone():
    found = re.compile(Plan.pattern(["b", "b-w4", "a.b"]))
    assert all(found.fullmatch(name) for name in ("b", "b-w4", "a.b"))
    assert not any(found.fullmatch(name) for name in ("", "b-w", "axb", "b-w4x"))


@pytest.mark.parametrize("checkpoint", PARAMETERS)
def test_networks_have_the_size_of_the_published_ones(paper, checkpoint):
    with torch.device("meta"):
        model = build.architecture(paper.params.checkpoint(checkpoint), {"head": "causal-lm"})
    assert sum(value.numel() for value in model.parameters()) == PARAMETERS[checkpoint]


def test_generation_is_reconstructed_briefly(paper):
    """AdaRound has the batch of FlexRound and the iterations of the appendix, and its own learning rate."""
    for pair, batch, lr in ((("ptb", "opt-1.3b"), 16, 3e-5), (("webnlg", "gpt2-large"), 8, 3e-3)):
        for recipe, rate in (("q-adaround-w8a8", 1e-3), ("q-flexround-w8a8", lr)):
            found, _ = hyper(paper.params, Run("paper", *pair, recipe, 0))
            assert (found.samples, found.iters, found.batch, found.lr) == (128, 500, batch, rate)
            assert (found.w_scheme, found.a_scheme, found.w_granularity) == ("asymmetric", "asymmetric", "tensor")
            assert {found.stem_bits, found.head_bits, found.stem_output_bits, found.head_input_bits} == {"low"}


def test_what_a_scale_has_everything_for_is_made_by_default(paper):
    smoke = Plan(load_params(str(Path(__file__).with_name("smoke.yaml"))))
    assert paper.complete_tables() == sorted(paper.params.tables)
    assert paper.complete_figures() == [3, 4, 5, 6, 7]
    assert (smoke.complete_tables(), smoke.complete_figures()) == ([10], [4, 7]), "it has MobileNetV2 alone"
    with pytest.raises(SettingsError, match=r"table 4: scale smoke lacks task 'glue-\S+' \(.*known: .*imagenet"):
        smoke.table_runs(4)


def test_a_selection_has_the_runs_of_its_checkpoints_alone(paper):
    chosen = Plan(paper.params, {"seeds": 1, "checkpoints": "llama-7b, resnet18-brecq"})
    assert {run.checkpoint for run in chosen.table_runs(2)} == {"resnet18-brecq"}
    assert {run.checkpoint for run in chosen.table_runs(19)} == {"llama-7b"}
    assert chosen.table_runs(4) == []
    tables = set(chosen.complete_tables())
    assert {2, 19} < tables
    assert not tables & {4, 5, 6}
    assert chosen.complete_figures() == []
    with pytest.raises(SettingsError, match="figure 4 shows mobilenetv2-brecq; add it"):
        chosen.figure_runs(4)
    with pytest.raises(SettingsError, match=r"--config checkpoints: 'resnet18-breck' .did you mean 'resnet18-brecq'"):
        Plan(paper.params, {"checkpoints": "llama-7b,resnet18-breck"})


def test_hours_of_stages_and_families_add_up(report):
    text = report("--all")
    assert re.search(r"longest job: finetune \S+llama-33b, \d+\.\d\d h", text)
    *stages, together = ([float(value) for value in row] for row in table(text).values())
    assert list(table(text)) == ["finetune", "gate", "reconstruct", "choice", "evaluate", "together"]
    for i, column in enumerate(zip(*stages, strict=True)):
        assert sum(column) == pytest.approx(together[i], abs=0.05)
    assert round(together[-1]) == 806, "docs/run-at-scale.md"
    assert round(float(table(report("--all", "--scale", "short"))["together"][-1])) == 118


def test_what_is_on_disk_costs_nothing_more(report, tmp_path, paper):
    arguments = ("--table", "2", "--seeds", "1", "--checkpoints", "resnet18-brecq")
    text = report(*arguments)
    assert "missing on disk: 2;" in text, "the network and the images"
    planned, before = jobs(text)[0], table(text)
    assert float(before["reconstruct"][-1]) > 0.5
    made = ["results/sources/brecq/resnet18_imagenet.pth.tar", "results/sources/imagenet/train/x"]
    made.append(f"{layout.data_dir('paper', 'imagenet')}/manifest.json")
    for run in paper.table_runs(2):
        made += [f"{layout.quantized_dir(run)}/manifest.json", f"{layout.evaluated_dir(run)}/metrics.json"]
    for file in made:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    text = report(*arguments)
    assert jobs(text)[1] == [1, 0, 0, 0, *planned[4:]]
    assert "missing on disk: nothing\n" in text
    after = table(text)
    assert set(after) == {"gate", "together"}
    assert after["gate"] == before["gate"]


def test_a_block_is_counted(paper):
    task, checkpoint = protocol.named(paper.scale, "glue-mrpc"), paper.params.checkpoint("bert-base")
    counted = cost.network(checkpoint, task)
    first = counted.blocks[0]
    assert (first.layers, first.weights) == (6, 12 * 768**2)
    assert first.flop == 2 * 128 * first.weights + 4 * 128**2 * 768, "linears, and the two products of attention"
    assert len(counted.blocks) == 12


@pytest.mark.parametrize(
    ("name", "mmac", "blocks"), [("resnet18", 1814, 10), ("resnet50", 4089, 18), ("mobilenetv2", 301, 20)]
)
def test_arithmetic_is_that_of_the_published_architectures(paper, name, mmac, blocks):
    task = protocol.named(paper.scale, "imagenet")
    found = cost.network(paper.params.checkpoint(f"{name}-brecq"), task)
    assert (round(found.flop / 2e6), len(found.blocks)) == (mmac, blocks)


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ("plan CONFIG=own=rows.yaml", "flexround.tools.plan --scale 'mini' --own rows.yaml"),
        ("push SCALE=real", "*** dvc.yaml stores nothing of the scale real, so nothing of it would be published"),
        ("push", "dvc commit --force"),
        ("rehearse TABLE=7 GPU=2", "--resources gpu=2 --set-resources finetune:gpu=1 gate:gpu=1"),
        ("regress SCALE=real", "*** the runs of regress are those of mini; give ALL=1 with SCALE=real"),
        ("regress SCALE=real ALL=1", "flexround.tools.regress --scale 'real' --all"),
    ],
)
def test_make_passes_what_it_is_given_or_refuses_it(goal, expected):
    command = ["make", "--dry-run", "--old-file", ".venv/installed", *goal.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert expected in done.stdout + done.stderr
