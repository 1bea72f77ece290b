"""Command lines of the jobs and tools; the workflow's files."""

import argparse
import ast
import logging
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flexround.errors import InputError
from flexround.jobs import command
from flexround.jobs.command import STAGES
from flexround.tools import cli

ROOT = Path(__file__).resolve().parent.parent


def modules(room):
    return {path.stem for path in (ROOT / "src/flexround" / room).glob("*.py")} - {"__init__"}


TOOLS = sorted(modules("tools") - {"archive", "cli", "cost", "target_hints"})  # these are no programs

# command lines


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(("program", "about"), [("jobs", STAGES), *((f"tools.{name}", ()) for name in TOOLS)])
def test_every_program_answers_help(program, about, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"flexround.{program}", run_name="__main__")
    text = capsys.readouterr().out
    assert (end.value.code, text[:6]) == (0, "usage:")
    assert all(word in text for word in (*about, "options:"))


def test_a_client_imports_nothing_slow():
    code = "import sys; import flexround.jobs.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "pydantic", "yaml", "safetensors"} & set(done.stdout.split())


@pytest.mark.parametrize("kind", [InputError, ZeroDivisionError])
def test_a_mistake_is_one_message_and_a_bug_keeps_its_traceback(kind, monkeypatch, capsys):
    def run(arguments):
        raise kind("what to do")

    monkeypatch.setattr(sys, "argv", ["tool"])
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a process of its own
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    with pytest.raises(SystemExit if kind is InputError else kind) as end:
        cli.main(run, argparse.ArgumentParser())
    if kind is InputError:
        assert end.value.code == 2
        assert re.fullmatch(r"\d\d:\d\d:\d\d error: what to do\n", capsys.readouterr().err)


# the workflow's files

RULE_FILES = sorted((ROOT / "workflow/rules").glob("*.smk"))
JOB = re.compile(r"python -m flexround\.jobs (\w+) {params\.job} ")
RULE = re.compile(r"^rule (\w+):\n((?:    .*\n|\n)+)", re.MULTILINE)
SECTION = re.compile(r"^    (\w+):(.*\n(?:        .*\n)*)", re.MULTILINE)
RULES = {name: body for path in RULE_FILES for name, body in RULE.findall(path.read_text())}
TARGETS = {"pretrain", "regress"}  # rules that only name files


def section(rule, name):
    """Return a section of a rule as the call of a function, so that names and commas are read as Python does."""
    text = dict(SECTION.findall(RULES[rule])).get(name)
    assert text is not None, f"rule {rule} has no {name}"
    return ast.parse(f"call({textwrap.dedent(text).strip()})", mode="eval").body


def test_every_job_has_a_rule_and_a_stage():
    text = "".join(path.read_text() for path in RULE_FILES)
    assert len(re.findall(r"^\s*(?:rule|checkpoint) ", text, re.MULTILINE)) == len(RULES) >= 10
    assert set(JOB.findall(text)) == set(STAGES)
    assert {*STAGES.values()} == modules("stages")
    text += (ROOT / "workflow/Snakefile").read_text()
    assert "ancient(" not in text
    assert "snakemake.dag" not in text, "it is patched"


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in TARGETS])
def test_every_rule_passes_on_what_it_asks_for(rule):
    resources = ast.unparse(section(rule, "resources"))
    shell = ast.literal_eval(section(rule, "shell").args[0])
    assert re.search(r"\*\*get_(gpu_)?resources\('\w+'\)|mem_mb=\d+, runtime=\d+", resources)
    assert "{log" in shell
    unquoted = {*re.findall(r"\{params\.(\w+)\}", shell)}
    assert unquoted <= {"job"}, "what comes from the command line is quoted: {params.NAME:q}"
    if not (job := JOB.search(shell)):
        return
    assert "--usage {log.usage}" in shell
    assert ("--threads {threads}" in shell) == ("threads" in dict(SECTION.findall(RULES[rule])))
    assert ("--gpus {resources.gpu} --jobs-per-gpu {resources.jobs_per_gpu}" in shell) == ("gpu" in resources)
    options = re.findall(r"(?<= )--[\w-]+", shell.partition("{params.job}")[2])
    command.parser().parse_args([job[1], "job.json", *(f"{option}=1" for option in options)])
    assert f"lambda w: get_inputs('{job[1]}'" in ast.unparse(section(rule, "input"))
