"""Command lines of the jobs and tools, what stages refuse; the workflow's files."""

import argparse
import ast
import importlib
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from stage_calls import Work, call

from flexround.errors import FlexRoundError, InputError, SettingsError
from flexround.io import artifacts
from flexround.jobs import command
from flexround.jobs.command import STAGES
from flexround.stages import select as choose
from flexround.tasks import protocol
from flexround.tools import cli

ROOT = Path(__file__).resolve().parent.parent
SMOKE = str(ROOT / "tests/smoke.yaml")


def modules(room):
    return {path.stem for path in (ROOT / "src/flexround" / room).glob("*.py")} - {"__init__"}


TOOLS = sorted(modules("tools") - {"cli", "target_hints", "workload"})  # these are no programs
PROGRAMS = (*(["jobs", name] for name in STAGES), *([f"tools.{name}"] for name in TOOLS))

# command lines

HELP = """
import contextlib, io, json, runpy, sys
found = {}
for program in json.loads(sys.argv[1]):
    name, *stage = program
    sys.argv, text = [name, *stage, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            runpy.run_module(f"flexround.{name}", run_name="__main__")
        found[" ".join(program)] = "no exit"
    except SystemExit as error:
        found[" ".join(program)] = [error.code, text.getvalue()]
print(json.dumps(found))
"""


def test_every_program_answers_help():
    programs = json.dumps([*PROGRAMS, ["jobs"]])
    done = subprocess.run([sys.executable, "-c", HELP, programs], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found) == {*map(" ".join, PROGRAMS), "jobs"}
    for name, (code, text) in found.items():
        assert code == 0, name
        assert text.startswith("usage:"), name
        first, *stage = name.split()
        about = STAGES[stage[0]].capitalize() if stage else importlib.import_module(f"flexround.{first}").__doc__
        assert name == "jobs" or about.split()[0] in text


def actions(parser):
    """Yield the actions of a parser and of its commands."""
    for action in parser._actions:
        yield action
        for inner in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from actions(inner)


def test_every_option_says_what_it_is():
    parsers = [command.parser(), *(importlib.import_module(f"flexround.tools.{name}").parser() for name in TOOLS)]
    for parser in parsers:
        assert all(action.help or isinstance(action, argparse._SubParsersAction) for action in actions(parser))


def test_every_stage_has_a_command_and_a_plan():
    assert modules("stages") == set(STAGES) <= modules("jobs")


def test_a_client_imports_nothing_slow():
    code = "import sys; import flexround.jobs.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "pydantic", "yaml", "safetensors"} & set(done.stdout.split())


def test_a_mistake_ends_with_code_2_and_one_message_on_stderr():
    done = subprocess.run(
        [sys.executable, "-m", "flexround.tools.plan", "--table", "98"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"\d\d:\d\d:\d\d error: --table '98' \(.*known: .*\)\n", done.stderr)


@pytest.mark.parametrize("kind", [FlexRoundError, SettingsError, InputError, ZeroDivisionError])
def test_every_kind_of_mistake_ends_with_code_2_and_a_bug_keeps_its_traceback(kind, monkeypatch, caplog):
    def run(arguments):
        raise kind("what to do")

    monkeypatch.setattr(sys, "argv", ["tool"])
    bug = not issubclass(kind, FlexRoundError)
    with pytest.raises(kind if bug else SystemExit) as caught:
        cli.main(run, argparse.ArgumentParser())
    if not bug:
        assert caught.value.code == 2
        assert "error: what to do" in caplog.text
        assert "Traceback" not in caplog.text


# what reconstruct refuses


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return Work(SMOKE, tmp_path_factory.mktemp("work"))


@pytest.fixture
def reconstruction(work, monkeypatch):
    """Return a function that replaces the calibration samples and reconstructs."""
    run = work.run("imagenet", "mobilenetv2-brecq", "b-rtn-w4")
    work.weights("imagenet", "mobilenetv2-brecq")
    monkeypatch.chdir(work.root)
    samples = work.root / work.plan.samples_dir(run)

    def reconstruct(count=64, damage=0, **options):
        arrays = {"images": np.zeros((count, 32, 32, 3), np.uint8), "indices": np.arange(count)}
        artifacts.atomic_write(samples / "samples.safetensors", lambda path: save_file(arrays, path))
        artifacts.write_manifest(samples, ["samples.safetensors"], place=work.plan.samples_dir(run))
        content = (samples / "samples.safetensors").read_bytes()
        (samples / "samples.safetensors").write_bytes(content[: len(content) - damage])
        call("reconstruct", work.inputs("reconstruct", run), **options)

    yield reconstruct
    assert not Path(work.plan.network_dir(run)).exists()


@pytest.mark.parametrize("count", [20, 65])
def test_another_number_of_samples_is_refused(reconstruction, count):
    with pytest.raises(InputError, match=f"{count} samples, the settings say 64; delete .* and run the same"):
        reconstruction(count)


def test_damaged_samples_are_refused(reconstruction):
    with pytest.raises(InputError, match=r"samples\.safetensors: .* its manifest says"):
        reconstruction(damage=1)


def test_a_preflight_writes_nothing(reconstruction, caplog):
    caplog.set_level("INFO")
    reconstruction(preflight=True)
    assert not Path(".state").exists()
    assert "host" in caplog.text


# select


class Scorer:
    """A task whose metric is written in the network's file."""

    head = {}

    def __init__(self, metric):
        self.metric = metric

    def evaluate(self, model, data, device, batch, source, split):
        assert split == "heldout", "never the test set"
        value = float((source / "weights-000.safetensors").read_text())
        return protocol.Evaluation(metrics={self.metric: value, "f1": 0.0}, stderr={}, n_examples={}, scores={})


@pytest.mark.parametrize(("metric", "expected"), [("acc", "b"), ("ppl", "a")])
def test_the_best_candidate_on_the_held_out_part_is_taken(work, tmp_path, monkeypatch, metric, expected):
    monkeypatch.setattr(protocol, "build", lambda _: Scorer(metric))
    monkeypatch.setattr("flexround.reconstruct.network.quantized", lambda *_: torch.nn.Identity())
    monkeypatch.chdir(tmp_path)
    values = {"a": 70.0, "b": 71.0, "c": 71.0}
    for name, value in values.items():
        artifacts.write_text(tmp_path / name / "weights-000.safetensors", str(value))
        artifacts.write_manifest(tmp_path / name, ["weights-000.safetensors"], place=name)
    run = work.run("imagenet", "mobilenetv2-brecq", "b-rtn-w4")
    job = work.inputs("evaluate", run)["job"]
    settings = json.loads(Path(job).read_text())
    del settings["recipe"], settings["network"]
    settings |= {"networks": {name: name for name in values}, "out": "out"}
    del settings["code"]
    artifacts.write_manifest(Path(settings["data"]), [])
    Path("select.json").write_text(json.dumps(settings))
    choose.run(argparse.Namespace(job=Path("select.json"), gpus=0))
    manifest = artifacts.read_manifest(tmp_path / "out")
    assert float((tmp_path / "out/weights-000.safetensors").read_text()) == values[expected]
    assert manifest["selected"] == {"recipe": expected, "metric": metric, "heldout": values}


# the workflow's files

RULE_FILES = sorted((ROOT / "workflow/rules").glob("*.smk"))
JOB = re.compile(r"(?:python -m flexround\.jobs|\{params\.launch\}) (\w+) {input\.job} ")
RULE = re.compile(r"^rule (\w+):\n((?:    .*\n|\n)+)", re.MULTILINE)
SECTION = re.compile(r"^    (\w+):(.*\n(?:        .*\n)*)", re.MULTILINE)
RULES = {name: body for path in RULE_FILES for name, body in RULE.findall(path.read_text())}
TARGETS = {"pretrain", "regress", "spread"}  # rules that only name files


def section(rule, name):
    """Return a section of a rule as the call of a function, so that names and commas are read as Python does."""
    text = dict(SECTION.findall(RULES[rule])).get(name)
    assert text is not None, f"rule {rule} has no {name}"
    return ast.parse(f"call({textwrap.dedent(text).strip()})", mode="eval").body


def test_every_rule_is_read_here_and_every_job_has_one():
    text = "".join(path.read_text() for path in RULE_FILES)
    assert len(re.findall(r"^\s*(?:rule|checkpoint) ", text, re.MULTILINE)) == len(RULES) >= 10
    assert set(JOB.findall(text)) == set(STAGES)


def test_nothing_is_ancient_and_snakemake_is_not_patched():
    text = "".join(path.read_text() for path in (*RULE_FILES, ROOT / "workflow/Snakefile"))
    assert "ancient(" not in text
    assert "snakemake.dag" not in text


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in TARGETS])
def test_every_rule_is_short_and_says_what_it_reads_writes_and_needs(rule):
    assert len(RULES[rule].rstrip().splitlines()) + 1 < 30
    for name in ("input", "output", "log"):
        call = section(rule, name)
        assert call.keywords or call.args, f"rule {rule} names no {name}"
    assert {"mem_mb", "runtime"} <= {keyword.arg for keyword in section(rule, "resources").keywords}
    assert "{log" in ast.literal_eval(section(rule, "shell").args[0])


@pytest.mark.parametrize("rule", [rule for rule, body in RULES.items() if JOB.search(body)])
def test_a_job_gets_its_file_alone_and_its_threads(rule):
    shell = ast.literal_eval(section(rule, "shell").args[0])
    name = JOB.search(shell)[1]
    assert "--usage {log.usage}" in shell
    assert ("--threads {threads}" in shell) == ("threads" in dict(SECTION.findall(RULES[rule])))
    resources = {keyword.arg for keyword in section(rule, "resources").keywords}
    assert ("--gpus {resources.gpu}" in shell) == ("gpu" in resources)
    assert not re.findall(r"{wildcards", shell), "what a job reads is in its file"
    options = re.findall(r"(?<= )--[\w-]+", shell.partition("{input.job}")[2])
    command.parsed([name, "job.json", *(f"{option}=1" for option in options)])
    call = ast.unparse(section(rule, "input"))
    assert f"unpack(lambda w: get_inputs('{name}'" in call
