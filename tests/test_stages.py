"""Command lines of the stages, their errors, the full-precision gate; the workflow's files, the pins."""

import argparse
import ast
import importlib
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import environment_yml
import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from safetensors.numpy import save_file

from flexround import artifacts
from flexround.errors import FlexRoundError, InputError, SettingsError
from flexround.models import build
from flexround.settings.load import load_params
from flexround.settings.schema import Gate
from flexround.stages import cli, evaluate, finetune, reconstruct
from flexround.stages import select as choose
from flexround.tasks import protocol

ROOT = Path(__file__).resolve().parent.parent
SMOKE = str(ROOT / "tests/smoke.yaml")
RUN = ("data", "fetch", "calibrate", "finetune", "reconstruct", "select", "evaluate")
SHOWN = ("tabulate", "figure", "claims", "summary")
BY_HAND = ("paper", "plan", "records", "reference", "regress", "report", "sentinels", "status", "stored", "verify")
STAGES = (*RUN, *SHOWN)
PROGRAMS = (*(f"stages.{name}" for name in STAGES), *(f"tools.{name}" for name in BY_HAND))

# command lines

HELP = """
import contextlib, io, json, runpy, sys
found = {}
for name in sys.argv[1:]:
    sys.argv, text = [name, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            runpy.run_module(f"flexround.{name}", run_name="__main__")
        found[name] = "no exit"
    except SystemExit as error:
        found[name] = [error.code, text.getvalue()]
print(json.dumps(found))
"""


def parsers():
    return {name: importlib.import_module(f"flexround.{name}").parser() for name in PROGRAMS}


def options(parser):
    """Return option -> action."""
    return {option: action for action in parser._actions for option in action.option_strings if option != "-h"}


def test_every_stage_answers_help():
    done = subprocess.run([sys.executable, "-c", HELP, *PROGRAMS], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found) == set(PROGRAMS)
    for name, (code, text) in found.items():
        assert code == 0, name
        assert text.startswith("usage:"), name
        assert importlib.import_module(f"flexround.{name}").__doc__.split()[0] in text


def test_every_option_says_what_it_is():
    for name, parser in parsers().items():
        assert all(action.help for action in parser._actions), name


def test_every_stage_is_tested_here():
    for room, names in (("stages", STAGES), ("tools", BY_HAND)):
        files = {path.stem for path in (ROOT / "src/flexround" / room).glob("*.py")}
        assert files - {"__init__", "cli"} == set(names)


def test_a_mistake_ends_with_code_2_and_one_message_on_stderr():
    command = [sys.executable, "-m", "flexround.stages.tabulate", "--table", "98"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"\d\d:\d\d:\d\d error: --table '98' \(.*known: .*\)\n", done.stderr)


@pytest.mark.parametrize("kind", [FlexRoundError, SettingsError, InputError])
def test_every_kind_of_mistake_ends_with_code_2(kind, monkeypatch, caplog):
    def run(arguments):
        raise kind("what to do")

    monkeypatch.setattr(sys, "argv", ["stage"])
    with pytest.raises(SystemExit) as caught:
        cli.main(run, argparse.ArgumentParser())
    assert caught.value.code == 2
    assert "error: what to do" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_bug_keeps_its_traceback(monkeypatch):
    def run(arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(sys, "argv", ["stage"])
    with pytest.raises(ZeroDivisionError):
        cli.main(run, argparse.ArgumentParser())


# the gate


def metrics(tmp_path, **values):
    artifacts.write_json(tmp_path / "metrics.json", {"metrics": values})
    return tmp_path / "metrics.json"


@pytest.mark.parametrize("value", [70.95, 71.0, 71.05])
def test_the_gate_opens_within_its_range(tmp_path, value):
    reconstruct.check_gate(Gate(metric="top1", min=70.95, max=71.05), metrics(tmp_path, top1=value))


@pytest.mark.parametrize("values", [{"top1": 70.94}, {"top1": 71.06}, {"top5": 71.0}, {}])
def test_the_gate_refuses_a_wrong_or_missing_accuracy(tmp_path, values):
    path = metrics(tmp_path, **values)
    with pytest.raises(InputError) as caught:
        reconstruct.check_gate(Gate(metric="top1", min=70.95, max=71.05), path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "top1" in message
    assert "70.95 to 71.05" in message
    assert str(values.get("top1")) in message
    assert "check the checkpoint's source and the preprocessing" in message


def test_the_gate_refuses_nan_and_a_missing_file(tmp_path):
    (tmp_path / "metrics.json").write_text('{"metrics": {"top1": NaN}}')
    gate = Gate(metric="top1", min=0, max=100)
    with pytest.raises(InputError, match="expected 0"):
        reconstruct.check_gate(gate, tmp_path / "metrics.json")
    with pytest.raises(InputError, match=r"nothing\.json: missing"):
        reconstruct.check_gate(gate, tmp_path / "nothing.json")


# what reconstruct and evaluate refuse


@pytest.fixture
def arguments(tmp_path):
    """Return a function that gives a complete command line of the reconstruct stage, with changes."""
    checkpoint = load_params(SMOKE).checkpoint("mobilenetv2-brecq")
    finetune.save(build.architecture(checkpoint, {}), tmp_path / "weights")
    gate = metrics(tmp_path, top1=50.0)

    def make(samples=64, **changes):
        arrays = {"images": np.zeros((samples, 32, 32, 3), np.uint8), "indices": np.arange(samples)}
        artifacts.atomic_write(tmp_path / "samples/samples.safetensors", lambda path: save_file(arrays, path))
        artifacts.write_manifest(tmp_path / "samples", ["samples.safetensors"])
        values = {"scale": SMOKE, "task": "imagenet", "checkpoint": "mobilenetv2-brecq", "recipe": "b-rtn-w4"}
        values |= {"weights": tmp_path / "weights", "samples": tmp_path / "samples", "gate": gate}
        values |= {"state": tmp_path / "state", "out": tmp_path / "out"} | changes
        return reconstruct.parser().parse_args([f"--{name}={value}" for name, value in values.items()])

    yield make
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", ["full-precision", "cle-full-precision"])
def test_nothing_is_reconstructed_for_a_recipe_that_quantizes_nothing(arguments, recipe):
    with pytest.raises(InputError, match=f"recipe {recipe} quantizes nothing"):
        reconstruct.run(arguments(recipe=recipe))


@pytest.mark.parametrize("count", [20, 65])
def test_another_number_of_samples_is_refused(arguments, count):
    with pytest.raises(InputError, match=f"samples: {count} samples, the settings say 64; run the calibrate stage"):
        reconstruct.run(arguments(samples=count))


def test_a_closed_gate_stops_before_anything_else_is_read(arguments, tmp_path):
    metrics(tmp_path, top1=-1.0)
    with pytest.raises(InputError, match=r"metrics\.json: full-precision top1 is -1\.0, expected 0"):
        reconstruct.run(arguments(weights=tmp_path / "nowhere"))


def test_damaged_samples_are_refused(arguments, tmp_path):
    command = arguments()
    file = tmp_path / "samples/samples.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"samples\.safetensors: .* its manifest says"):
        reconstruct.run(command)


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("task", "imagnet", "imagenet"),
        ("checkpoint", "mobilenetv2-breck", "mobilenetv2-brecq"),
        ("recipe", "b-flexruond-w4", "b-flexround-w4"),
    ],
)
def test_wrong_names_on_the_command_line_are_refused_with_a_suggestion(arguments, tmp_path, field, wrong, right):
    expected = re.escape(f"{wrong!r} (did you mean {right!r}?")
    with pytest.raises(SettingsError, match=expected):
        reconstruct.run(arguments(**{field: wrong}))
    command = vars(arguments(**{field: wrong})) | {"data": tmp_path, "quantized": tmp_path}
    with pytest.raises(SettingsError, match=expected):
        evaluate.run(argparse.Namespace(**command))


@pytest.mark.parametrize(("recipe", "option"), [("full-precision", "--weights"), ("b-rtn-w4", "--quantized")])
def test_evaluate_says_which_network_it_needs(tmp_path, recipe, option):
    names = ["--scale", SMOKE, "--task", "imagenet", "--checkpoint", "mobilenetv2-brecq", "--recipe", recipe]
    command = evaluate.parser().parse_args([*names, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SettingsError, match=f"recipe {recipe} needs {option}"):
        evaluate.run(command)


def test_training_says_that_it_needs_data(tmp_path):
    names = [
        "--scale",
        SMOKE,
        "--task",
        "imagenet",
        "--checkpoint",
        "mobilenetv2-brecq",
        "--out",
        str(tmp_path / "out"),
    ]
    with pytest.raises(SettingsError, match="--data"):
        finetune.run(finetune.parser().parse_args(names))


# select


class Scorer:
    """A task whose metric is written in the network's file."""

    head = {}

    def __init__(self, metric):
        self.metric = metric

    def evaluate(self, model, data, device, batch, source, split):
        assert split == "heldout", "never the test set"
        value = float((source / "weights-000.safetensors").read_text())
        return protocol.Evaluation({self.metric: value, "f1": 0.0}, {}, {}, {})


@pytest.mark.parametrize(("metric", "expected"), [("acc", "b"), ("ppl", "a")])
def test_the_best_candidate_on_the_held_out_part_is_taken(tmp_path, monkeypatch, metric, expected):
    monkeypatch.setattr(choose.protocol, "named", lambda *_: Scorer(metric))
    monkeypatch.setattr(choose.network, "quantized", lambda *_: torch.nn.Identity())
    values = {"a": 70.0, "b": 71.0, "c": 71.0}
    for name, value in values.items():
        artifacts.write_text(tmp_path / name / "weights-000.safetensors", str(value))
        artifacts.write_manifest(tmp_path / name, ["weights-000.safetensors"], grids={}, run={"recipe": name})
    names = ["--task=imagenet", "--checkpoint=mobilenetv2-brecq", "--recipe=b-rtn-w4", "--scale", SMOKE]
    names += ["--networks", *(str(tmp_path / name / "manifest.json") for name in "abc")]
    names += ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    choose.run(choose.parser().parse_args(names))
    manifest = artifacts.read_manifest(tmp_path / "out")
    assert float((tmp_path / "out/weights-000.safetensors").read_text()) == values[expected]
    assert manifest["selected"] == {"recipe": expected, "metric": metric, "heldout": values}
    assert manifest["grids"] == {}


# the workflow's files

RULE_FILES = sorted((ROOT / "workflow/rules").glob("*.smk"))
RULE = re.compile(r"^rule (\w+):\n((?:    .*\n|\n)+)", re.MULTILINE)
SECTION = re.compile(r"^    (\w+):(.*\n(?:        .*\n)*)", re.MULTILINE)
RULES = {name: body for path in RULE_FILES for name, body in RULE.findall(path.read_text())}
TARGETS = {"regress", "spread"}  # rules that only name files


COMMON = (ROOT / "workflow/rules/common.smk").read_text()


def section(rule, name):
    """Return a section of a rule as the call of a function, so that names and commas are read as Python does."""
    text = dict(SECTION.findall(RULES[rule])).get(name)
    assert text is not None, f"rule {rule} has no {name}"
    return ast.parse(f"call({textwrap.dedent(text).strip()})", mode="eval").body


def test_the_snakefile_is_short():
    assert len((ROOT / "Snakefile").read_text().splitlines()) < 60


def test_every_rule_is_read_here():
    text = "".join(path.read_text() for path in RULE_FILES)
    assert len(re.findall(r"^\s*(?:rule|checkpoint) ", text, re.MULTILINE)) == len(RULES) >= 10
    stages = set(re.findall(r"(?:python -m|\{params\.launch\}) flexround\.stages\.(\w+)", text))
    assert stages == {*RUN, *SHOWN}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in TARGETS])
def test_every_rule_is_short_and_names_what_it_reads_and_writes(rule):
    assert len(RULES[rule].rstrip().splitlines()) + 1 < 30
    for name in ("input", "output"):
        call = section(rule, name)
        assert all("unpack" in ast.unparse(argument) for argument in call.args), (
            f"rule {rule}: an {name} without a name"
        )
        assert call.keywords or (rule, name) == ("fetch", "input")
    assert section(rule, "log").args
    assert {"mem_mb", "runtime"} <= {keyword.arg for keyword in section(rule, "resources").keywords}
    assert "{log}" in ast.literal_eval(section(rule, "shell").args[0])


@pytest.mark.parametrize("rule", [rule for rule, body in RULES.items() if "flexround.stages" in body])
def test_every_rule_gives_its_stage_the_options_that_it_knows_and_needs(rule):
    shell = ast.literal_eval(section(rule, "shell").args[0])
    stage = re.search(r"flexround\.stages\.(\w+)", shell)[1]
    known = options(parsers()[stage])
    given = set(re.findall(r"(?<= )--\w+", shell))
    assert given <= set(known)
    assert {option for option, action in known.items() if action.required} <= given
    for wildcard in re.findall(r"{(\w+)}", ast.literal_eval(section(rule, "log").args[0])):
        if wildcard == "scale":
            assert "{params.scale}" in shell or stage == "summary"  # which gets the scale's tables by name
        else:
            assert f"{{wildcards.{wildcard}}}" in shell
    assert {"code"} <= {keyword.arg for keyword in section(rule, "input").keywords}
    code = next(keyword.value for keyword in section(rule, "input").keywords if keyword.arg == "code")
    text = ast.unparse(code) if "PLAN" in ast.unparse(code) else COMMON.partition(f"def {ast.unparse(code)}")[2]
    assert re.search(rf"PLAN\.code\(['\"]{stage}['\"]", text)
    assert section(rule, "benchmark").args


# the pins

LOCK = (ROOT / "requirements.lock").read_text()
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s;]+)[^\n]*\\\n((?:    --hash=\S+.*\n)+)", re.MULTILINE)


def test_environment_yml_has_the_pins_of_the_lock():
    assert (ROOT / "environment.yml").read_text() == environment_yml.render()


def test_every_package_named_is_pinned_with_hashes_in_a_version_that_is_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pins = {name: (version, hashes) for name, version, hashes in PIN.findall(LOCK)}
    rendered = environment_yml.render()
    for text in named:
        requirement = Requirement(text)
        assert requirement.name in pins, f"{requirement.name} is not in requirements.lock: run `make lock`"
        version, _ = pins[requirement.name]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"
        assert f"- {requirement.name}=={version}\n" in rendered


def test_everything_in_the_lock_is_exact_and_hashed():
    lines = [line for line in LOCK.splitlines() if line and not line.startswith((" ", "#"))]
    pins = PIN.findall(LOCK)
    assert len(pins) == len(lines) > 50
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", hashes) for _, _, hashes in pins)


@pytest.mark.parametrize("name", ["requirements.lock", "environment.yml"])
def test_no_address_is_written_down_with_the_pins(name):
    assert not re.search(r"https?:|--(?:extra-)?index-url|--find-links|file:", (ROOT / name).read_text())
