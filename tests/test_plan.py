"""What a table costs before anything is computed, and what tables share."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flexround.errors import SettingsError
from flexround.jobs.resolve import Jobs
from flexround.models import build
from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.load import hyper, load_params
from flexround.settings.plan import Plan
from flexround.settings.schema import NeedRule, Needs
from flexround.settings.validation import validate
from flexround.tasks import protocol
from flexround.tasks.text.lora_training import AdapterTrainSettings
from flexround.tasks.webnlg.task import WebNLGTrainSettings
from flexround.tools import plan as stage
from flexround.tools import workload

NETWORKS = {"resnet18": 1814, "resnet50": 4089, "mobilenetv2": 301}  # MMAC of the published architectures
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


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """Return a function that makes the report in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def make(*arguments):
        stage.run(stage.parser().parse_args(arguments))
        return capsys.readouterr().out

    return make


def jobs(text):
    """Return stage -> (jobs, done)."""
    rows = re.findall(r"^  (\w+) +(\d+)   already on disk: (\d+)$", text, re.MULTILINE)
    return {name: (int(count), int(done)) for name, count, done in rows}


def table(text):
    """Return purpose -> hours of each family and together."""
    rows = re.findall(r"^  ([a-z]+(?:[ -][a-z]+)?) +((?:\d+\.\d\d +)*\d+\.\d\d)(?: h)?$", text, re.MULTILINE)
    return {name: row.split() for name, row in rows}


def test_table_3_of_the_paper(report):
    text = report("--table", "3")
    assert jobs(text) == {
        "data": (1, 0),
        "finetune": (3, 0),
        "gate": (3, 0),
        "calibrate": (5, 0),
        "reconstruct": (120, 0),
        "evaluate": (123, 0),
    }
    assert "missing on disk: 4" in text
    for file in ("resnet18_imagenet.pth.tar", "resnet50_imagenet.pth.tar", "mobilenetv2.pth.tar"):
        assert re.search(rf"^  results/sources/brecq/{re.escape(file)} from https://", text, re.MULTILINE)
    assert re.search(r"^  results/sources/imagenet/ .*sources\.yaml", text, re.MULTILINE)
    rows = dict(re.findall(r"^  imagenet/(\w+)-brecq +(\S+ h   \d+ MMAC, \d+ blocks)$", text, re.MULTILINE))
    hours = {name: float(row.split()[0]) for name, row in rows.items()}
    assert set(hours) == set(NETWORKS)
    assert all(0 < value < 10_000 for value in hours.values())
    stages = {name: float(row[-1]) for name, row in table(text).items()}
    assert stages["reconstruct"] == pytest.approx(sum(hours.values()), abs=0.03)
    assert sum(stages.values()) == pytest.approx(2 * stages["together"], abs=0.05)
    assert stages["gate"] > 0 < stages["evaluate"]
    for name, expected in NETWORKS.items():
        assert float(re.search(r"(\d+) MMAC", rows[name])[1]) == pytest.approx(expected, rel=0.02)
    blocks = {name: int(re.search(r"(\d+) blocks", row)[1]) for name, row in rows.items()}
    assert blocks == {"resnet18": 10, "resnet50": 18, "mobilenetv2": 20}
    caches, state = map(float, re.search(r"caches up to (\S+) GiB, .* state on disk up to (\S+) GiB", text).groups())
    widest = 1024 * 256 * 56 * 56 * 4 / 2**30  # 1024 samples of ResNet-50's first stage, float32
    assert caches == pytest.approx(3 * widest, abs=0.01)
    assert state == pytest.approx(5 * widest, abs=0.01)


def test_a_fresh_process_can_make_the_report(tmp_path):
    """torchvision can't be imported for the first time while the device is "meta"."""
    command = [sys.executable, "-m", "flexround.tools.plan", "--scale", "paper", "--figure", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " MMAC, " in done.stdout


def test_what_is_on_disk_is_counted_and_no_longer_missing(report, tmp_path, paper):
    runs = paper.table_runs(3)
    for path in (
        f"{layout.data_dir('paper', 'imagenet')}/manifest.json",
        f"{layout.checkpoint_dir('paper', 'imagenet', 'resnet18-brecq')}/manifest.json",
        f"{layout.quantized_dir(runs[-1])}/manifest.json",
        f"{layout.evaluated_dir(runs[-1])}/metrics.json",
        f"{layout.evaluated_dir(runs[0])}/metrics.json",
        "results/sources/brecq/mobilenetv2.pth.tar",
        "results/sources/imagenet/train/x",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    text = report("--table", "3", "--seeds", "5")
    assert {name: done for name, (_, done) in jobs(text).items()} == {
        "data": 1,
        "finetune": 1,
        "gate": 0,
        "calibrate": 0,
        "reconstruct": 1,
        "evaluate": 2,
    }
    assert "missing on disk: 2" in text
    assert "mobilenetv2.pth.tar" not in text


def test_nothing_is_missing_at_the_offline_scale(report):
    text = report("--scale", "mini", "--table", "3")
    assert "missing on disk: nothing" in text
    assert jobs(text)["reconstruct"] == (24, 0)
    assert jobs(text)["evaluate"] == (27, 0)


def test_seeds_multiply_what_is_quantized_alone(report):
    text = report("--scale", "mini", "--table", "3", "--seeds", "2")
    assert (jobs(text)["reconstruct"][0], jobs(text)["evaluate"][0], jobs(text)["calibrate"][0]) == (48, 51, 2)


def test_the_figures_are_planned_too(report):
    """Figure 3 shows two quantized weights, of which nothing but the full precision is measured, at the gate."""
    shifts = jobs(report("--scale", "mini", "--figure", "3"))
    assert (shifts["reconstruct"][0], shifts["finetune"][0]) == (2, 2)
    assert (shifts["gate"][0], shifts["evaluate"][0]) == (2, 0)
    sizes = jobs(report("--scale", "paper", "--figure", "7"))
    assert (sizes["reconstruct"][0], sizes["calibrate"][0], sizes["evaluate"][0]) == (2 * 7 * 5, 7 * 5, 2 * 7 * 5)


@pytest.mark.parametrize("arguments", [("--figure", "99"), ("--table", "99")])
def test_what_there_is_not_is_refused(report, arguments):
    with pytest.raises(SettingsError, match=f"{arguments[0]} '{arguments[1]}' .*known: "):
        report(*arguments)


def test_one_of_table_and_figure_must_be_given(report):
    with pytest.raises(SystemExit) as caught:
        report("--scale", "mini")
    assert caught.value.code == 2


# what is shared


def test_tables_1_2_and_11_share_their_runs(paper):
    sizes = {number: len(paper.table_runs(number)) for number in (1, 2, 11)}
    recipes = {number: {row.recipe for row in paper.params.tables[number].rows()} for number in sizes}
    rows = {number: len(names - {"full-precision"}) for number, names in recipes.items()}
    assert all(rows[number] >= count for number, count in {1: 5, 2: 9, 11: 9}.items())
    # checkpoints x seeds x recipes, and full precision once per checkpoint
    assert sizes == {number: 3 * 5 * rows[number] + 3 for number in sizes}
    together = {layout.evaluated_dir(run) for number in sizes for run in paper.table_runs(number)}
    # 2 recipes of table 1 and 3 of table 11 are not in table 2
    assert (len(recipes[1] - recipes[2]), len(recipes[11] - recipes[2])) == (2, 3)
    assert len(together) == 3 * 5 * (rows[2] + 2 + 3) + 3
    assert {layout.evaluated_dir(run) for run in paper.table_runs(1)} & {
        layout.evaluated_dir(run) for run in paper.table_runs(2)
    } == {
        layout.evaluated_dir(run)
        for run in paper.table_runs(2)
        if run.recipe in ("full-precision", "b-adaquant-w4", "b-adaround-w4", "b-flexround-w4")
    }


def test_figure_7_and_table_8_share_the_runs_at_the_default_size(paper):
    shared = set(paper.figure_runs(7)) & set(paper.table_runs(8))
    assert {(run.checkpoint, run.recipe) for run in shared} == {
        ("mobilenetv2-torchvision", "b-adaround-w4"),
        ("mobilenetv2-torchvision", "b-flexround-w4"),
    }
    assert len(shared) == 2 * 5


def test_every_run_has_paths_of_its_own(paper):
    runs = {run for number in paper.params.tables for run in paper.table_runs(number)}
    for directory in (layout.evaluated_dir, layout.quantized_dir):
        assert len({directory(run) for run in runs}) == len(runs)


def test_samples_are_shared_by_all_methods_of_a_seed_and_size(paper):
    directories = {paper.samples_dir(run) for run in paper.table_runs(3) if paper.params.recipe(run.recipe).quantized}
    assert directories == {f"results/paper/calibration/imagenet/n1024-seed{seed}" for seed in range(5)}
    small = Run("paper", "imagenet", "mobilenetv2-torchvision", "b-flexround-w4-n32", 1)
    assert paper.samples_dir(small) == "results/paper/calibration/imagenet/n32-seed1"


def test_a_job_changes_with_what_its_run_depends_on_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = load_params("mini")
    run = Run("mini", "imagenet", "resnet18-brecq", "b-flexround-w4", 0)
    other = Run("mini", "imagenet", "resnet18-brecq", "b-adaround-w4", 0)

    def job(params, run):
        return Path(Jobs(Plan(params)).reconstruct(run)["job"]).read_text()

    before, of_other = job(params, run), job(params, other)
    more_seeds = params._replace(scale=params.scale.model_copy(update={"seeds": 9, "description": "other"}))
    assert job(more_seeds, run) == before
    recipe = params.recipe("b-flexround-w4").model_copy(update={"hyper": {"iters": 7}})
    recipes = params.recipes.model_copy(update={"recipes": params.recipes.recipes | {"b-flexround-w4": recipe}})
    assert job(params._replace(recipes=recipes), run) != before
    assert job(params._replace(recipes=recipes), other) == of_other
    checkpoints = params.scale.checkpoints
    halves = checkpoints["resnet18-brecq"].model_copy(update={"evaluated": "float16"})
    needs = (NeedRule(when={"stage": "reconstruct"}, set=Needs(mem_mb=9999, runtime=99)),)
    scale = params.scale.model_copy(update={"checkpoints": checkpoints | {"resnet18-brecq": halves}, "needs": needs})
    assert job(params._replace(scale=scale), run) == before, "what it asks of the machine, how it is evaluated"


@pytest.mark.parametrize("seeds", [0, -1, "two", "1.5", ""])
def test_an_impossible_number_of_seeds_is_refused(seeds):
    with pytest.raises(SettingsError, match="whole number from 1 to 1000"):
        Plan(load_params("mini"), seeds)


def test_a_pattern_matches_its_names_alone():
    found = re.compile(Plan.pattern(["b", "b-w4", "a.b"]))
    assert all(found.fullmatch(name) for name in ("b", "b-w4", "a.b"))
    assert not any(found.fullmatch(name) for name in ("", "b-w", "axb", "b-w4x"))
    assert not re.compile(Plan.pattern([])).fullmatch("")


def test_what_is_chosen_among_others_costs_them_all(report):
    found = jobs(report("--table", "16", "--seeds", "1"))
    assert found["reconstruct"] == (3 * 5 * 4, 0), "three tasks, five models: AdaRound and three rates of FlexRound"
    assert found["evaluate"] == (3 * 5 * 3, 0)


def test_missing_data_sets_and_models_are_named(report):
    text = report("--table", "12", "--seeds", "1")
    assert "missing on disk: 3" in text
    for name in ("squad", "hub/bert-base-uncased", "hub/bert-large-uncased"):
        assert f"results/sources/{name} from " in text


def test_table_5_of_the_paper(report):
    """Two corpora, six models, two methods, one seed; 128 blocks of 1024 tokens, of which a batch holds up to 32."""
    text = report("--table", "5")
    found = {name: count for name, (count, _) in jobs(text).items()}
    assert found == {"data": 2, "finetune": 12, "gate": 12, "calibrate": 2, "reconstruct": 24, "evaluate": 36}
    assert "missing on disk: 8" in text
    for name in ("wikitext2", "ptb", "hub/gpt-neo-125m", "hub/opt-2.7b"):
        assert f"results/sources/{name} from " in text
    blocks = dict(re.findall(r"^  (\w+/\S+) .* MMAC, (\d+) blocks$", text, re.MULTILINE))
    depths = {"125m": "12", "1.3b": "24", "2.7b": "32"}
    assert blocks == {
        f"{task}/{family}-{size}": depth
        for task in ("wikitext2", "ptb")
        for family in ("gpt-neo", "opt")
        for size, depth in depths.items()
    }
    widest = 128 * 1024 * 2560 * 4 / 2**30  # 128 blocks of the widest hidden states, float32
    assert float(re.search(r"caches up to (\S+) GiB", text)[1]) == pytest.approx(3 * widest, abs=0.01)


def test_table_6_of_the_paper(report):
    text = report("--table", "6", "--seeds", "1")
    found = {name: count for name, (count, _) in jobs(text).items()}
    assert found == {"data": 1, "finetune": 2, "gate": 2, "calibrate": 1, "reconstruct": 4, "evaluate": 6}
    assert "missing on disk: 5" in text  # two networks, their adapters, the data
    blocks = dict(re.findall(r"^  webnlg/(\S+) .* MMAC, (\d+) blocks$", text, re.MULTILINE))
    assert blocks == {"gpt2-medium": "24", "gpt2-large": "36"}


def test_table_23_of_the_paper(report):
    text = report("--table", "23", "--seeds", "1")
    found = {name: count for name, (count, _) in jobs(text).items()}
    assert found == {"data": 2, "finetune": 6, "gate": 6, "calibrate": 2, "reconstruct": 12, "evaluate": 18}
    assert "missing on disk: 5" in text
    assert re.search(r"missing on disk: \d+; params/sources.yaml has no size of \d+\n", text)
    assert "results/sources/llama/llama-33b from LLaMA-30B of Meta AI (65.1 GB)" in text
    blocks = dict(re.findall(r"^  ptb-lora/(\S+) .* MMAC, (\d+) blocks$", text, re.MULTILINE))
    assert blocks == {"llama-7b": "32", "llama-13b": "40", "llama-33b": "60"}
    widest = 256 * 1024 * 6656 * 4 / 2**30
    assert float(re.search(r"caches up to (\S+) GiB", text)[1]) == pytest.approx(3 * widest, abs=0.01)


@pytest.mark.parametrize("checkpoint", PARAMETERS)
def test_networks_have_the_size_of_the_published_ones(paper, checkpoint):
    with torch.device("meta"):
        model = build.architecture(paper.params.checkpoint(checkpoint), {"head": "causal-lm"})
    assert sum(value.numel() for value in model.parameters()) == PARAMETERS[checkpoint]


def test_training_settings_are_those_that_the_tasks_know(paper):
    for task in ("wikitext2", "ptb", "wikitext2-lora", "ptb-lora"):
        for name in {checkpoint for known, checkpoint in paper.params.pairs() if known == task}:
            validate(AdapterTrainSettings, paper.params.train(task, name), f"{task}/{name}")
    for size in ("medium", "large"):  # with the released adapter, and the alternative
        assert paper.params.checkpoint(f"gpt2-{size}").adapter == f"gpt2-{size}-lora-webnlg"
        assert paper.params.train("webnlg", f"gpt2-{size}") is None
        assert paper.params.checkpoint(f"gpt2-{size}-trained").adapter is None
    lora = WebNLGTrainSettings(**paper.params.train("webnlg", "gpt2-large-trained"))
    assert (lora.rank, lora.alpha, lora.batch, lora.epochs, lora.lr) == (4, 32, 8, 5, 2e-4)
    steps = 5 * math.ceil(18025 / 8)  # of microsoft/LoRA's run
    assert math.ceil(lora.warmup * steps) == 500


def test_generation_is_reconstructed_briefly_and_with_asymmetric_grids(paper):
    """AdaRound has the batch of FlexRound and the iterations of the appendix, and its own learning rate."""
    for task, checkpoint, batch in (("ptb", "opt-1.3b", 16), ("webnlg", "gpt2-large", 8)):
        for recipe, lr in (
            ("q-adaround-w8a8", 1e-3),
            ("q-flexround-w8a8", {"opt-1.3b": 3e-5, "gpt2-large": 3e-3}[checkpoint]),
        ):
            found, _ = hyper(paper.params, Run("paper", task, checkpoint, recipe, 0))
            assert (found.samples, found.iters, found.batch, found.lr) == (128, 500, batch, lr)
            assert found.w_scheme == found.a_scheme == "asymmetric"
            assert found.w_granularity == "tensor"
            assert {found.stem_bits, found.head_bits, found.stem_output_bits, found.head_input_bits} == {"low"}


def test_a_table_that_the_scale_cannot_make_says_which_it_can():
    smoke = Plan(load_params(str(Path(__file__).with_name("smoke.yaml"))))
    with pytest.raises(SettingsError, match="table 4: scale smoke lacks tasks or models; it can make 10"):
        smoke.table_runs(4)
    own = Plan(load_params("examples/squeezenet/squeezenet.yaml"))
    with pytest.raises(SettingsError, match=r"; it can make no table, but results/squeezenet/evaluated/TASK/.*json of"):
        own.table_runs(2)


def test_what_a_scale_has_everything_for_is_made_by_default():
    paper, smoke = Plan(load_params("paper")), Plan(load_params(str(Path(__file__).with_name("smoke.yaml"))))
    assert paper.complete_tables() == sorted(paper.params.tables)
    assert paper.complete_figures() == [3, 4, 5, 6, 7]
    assert smoke.complete_tables() == [10], "it has MobileNetV2 alone"
    assert smoke.complete_figures() == [4, 7]


# seeds, selections, resources


def test_seeds_are_those_of_the_task(paper):
    assert {paper.seeds(task) for task in paper.scale.tasks if task != "imagenet"} == {1}
    assert paper.seeds("imagenet") == 5
    assert {Plan(paper.params, 3).seeds(task) for task in paper.scale.tasks} == {3}


def test_a_selection_has_the_runs_of_its_checkpoints_alone(paper):
    chosen = Plan(paper.params, 1, checkpoints="llama-7b, resnet18-brecq")
    assert {run.checkpoint for run in chosen.table_runs(2)} == {"resnet18-brecq"}
    assert {run.checkpoint for run in chosen.table_runs(19)} == {"llama-7b"}
    assert chosen.table_runs(4) == []
    tables = set(chosen.complete_tables())
    assert {2, 19} < tables
    assert not tables & {4, 5, 6}
    assert chosen.complete_figures() == []
    with pytest.raises(SettingsError, match="figure 4 shows mobilenetv2-brecq; add it"):
        chosen.figure_runs(4)


def test_a_misspelt_checkpoint_is_refused_with_a_suggestion(paper):
    with pytest.raises(SettingsError, match=r"--config checkpoints: 'resnet18-breck' .did you mean 'resnet18-brecq'"):
        Plan(paper.params, checkpoints="llama-7b,resnet18-breck")


def test_resources_are_those_of_the_job_and_grow_with_attempts(paper):
    small = paper.resources("evaluate", "imagenet", "resnet18-brecq")
    large = paper.resources("evaluate", "commonsense", "llama-33b")
    assert (small.gpu_mb, large.gpu_mb) == (40000, 80000)
    assert large.runtime >= 4 * 60 > small.runtime
    again = paper.resources("evaluate", "commonsense", "llama-33b", attempt=2)
    assert (again.runtime, again.mem_mb, again.gpu_mb) == (2 * large.runtime, 2 * large.mem_mb, large.gpu_mb)
    asked = [
        paper.resources(stage, task, checkpoint)
        for stage in ("finetune", "reconstruct", "evaluate")
        for task, checkpoint in paper.params.pairs()
    ]
    assert max(one.mem_mb for one in asked) <= 64000
    assert max(one.gpu_mb for one in asked) <= 80000
    of_33b = [paper.resources("reconstruct", *pair) for pair in paper.params.pairs() if pair[1] == "llama-33b"]
    others = [paper.resources("reconstruct", *pair) for pair in paper.params.pairs() if pair[1] != "llama-33b"]
    assert {one.gpu_mb for one in of_33b} == {80000}
    assert {one.gpu_mb for one in others} == {40000}


# the bill and the rehearsal of memory


def test_a_job_that_asks_for_too_little_is_refused_before_anything_runs(paper, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rule = NeedRule(when={"stage": "reconstruct"}, set=Needs(gpu_mb=500, mem_mb=1000, runtime=1))
    scale = paper.scale.model_copy(update={"needs": (rule,)})
    monkeypatch.setattr(stage.additions, "configured", lambda *_: paper.params._replace(scale=scale))
    with pytest.raises(SettingsError) as caught:
        stage.run(stage.parser().parse_args(["--table", "2", "--seeds", "1", "--checkpoints", "resnet18-brecq"]))
    message = str(caught.value)
    for wrong in (r"\d+\.\d GB of GPU memory", r"\d+\.\d GB of host memory", r"\d+\.\d hours"):
        assert re.search(rf"reconstruct imagenet/resnet18-brecq: {wrong} \(b-\S+\), it asks for \d", message)
    assert "needs" in message
    assert "by stage" in capsys.readouterr().out, "the bill is shown all the same"


def test_every_job_of_the_papers_scale_fits_what_it_asks_for(report):
    text = report("--all")  # which else is an error
    largest = re.findall(r"largest \w+ job: GPU (\S+) GB, host (\S+) GB", text)
    assert len(largest) == 3
    assert all(float(gpu) <= 80 and float(host) <= 64 for gpu, host in largest)
    hours = {name: float(row[-1]) for name, row in table(text).items()}
    purposes = {"gate", "finetune", "reconstruct", "evaluate", "choice"}
    assert set(hours) == purposes | {"together"}
    assert all(hours[name] > 0 for name in purposes)


def test_a_finished_run_costs_nothing_more(report, tmp_path, paper):
    arguments = ("--table", "2", "--seeds", "1", "--checkpoints", "resnet18-brecq")
    before = table(report(*arguments))
    for run in paper.table_runs(2):
        for file in (f"{layout.quantized_dir(run)}/manifest.json", f"{layout.evaluated_dir(run)}/metrics.json"):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("")
    after = table(report(*arguments))
    assert float(before["reconstruct"][-1]) > 0.5
    assert set(after) == {"gate", "together"}
    assert after["gate"] == before["gate"]


def test_tables_that_share_runs_pay_once(paper):
    one, two = (dict.fromkeys(paper.table_runs(number), "x") for number in (1, 2))
    count = [len(stage.jobs(paper, runs, set(runs))) for runs in (one, two, one | two)]
    assert max(count[:2]) < count[2] < sum(count[:2])


def test_a_block_is_counted_as_autograd_sees_it(paper):
    """Counted without memory, and measured on a real block of the same shape."""
    task, checkpoint = protocol.named(paper.scale, "glue-mrpc"), paper.params.checkpoint("bert-base")
    counted = workload.network(checkpoint, task)
    block = build.cut(checkpoint, build.architecture(checkpoint, task.head))[0]
    weights = {value.untyped_storage().data_ptr() for value in block.module.parameters()}
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        block(torch.randn(1, 128, 768))
    first = counted.blocks[0]
    assert 0.7 < first.saved / sum(size for place, size in kept.items() if place not in weights) < 1.4
    assert first.parameters == sum(value.numel() for value in block.module.parameters())
    assert (first.layers, first.weights) == (6, 12 * 768**2)
    assert first.flop == 2 * 128 * first.weights + 4 * 128**2 * 768, "linears, and the two products of attention"
    assert len(counted.blocks) == 12
