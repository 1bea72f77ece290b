"""Snakemake reruns what is stale behind an ancient file, and nothing else."""

import subprocess
import sys

import pytest

REPAIR = "from flexround.stale import look_behind_ancient_files\nlook_behind_ancient_files()\n"
SNAKEFILE = """
rule network:
    input: gate=ancient("gate"), code="code", settings="settings"
    output: "network"
    shell: "cp {input.code} {output}"
rule table:
    input: "network"
    output: "table"
    shell: "cp {input} {output}"
rule gate:
    input: "code", "questions"
    output: "gate"
    shell: "cp {input[1]} {output}"
"""


def snakemake(directory, *options):
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--nolock", *options, "table", "gate"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return {name for name in ("network", "table", "gate") if f"rule {name}:" in done.stdout + done.stderr}


@pytest.fixture
def made(tmp_path):
    """Return a function that makes everything once with a prelude, edits files and returns what would run."""

    def would_run(prelude, *edited):
        (tmp_path / "Snakefile").write_text(prelude + SNAKEFILE)
        for name in ("code", "settings", "questions"):
            (tmp_path / name).write_text("old")
        assert snakemake(tmp_path) == {"network", "table", "gate"}
        assert snakemake(tmp_path, "-n") == set()
        for name in edited:
            (tmp_path / name).write_text("new")
        return snakemake(tmp_path, "-n")

    return would_run


def test_an_edit_of_what_both_need_reruns_both(made):
    assert made(REPAIR, "code") == {"gate", "network", "table"}


def test_two_edits_at_once_are_both_seen(made):
    assert made(REPAIR, "questions", "settings") == {"gate", "network", "table"}


def test_a_gate_alone_runs_alone(made):
    assert made(REPAIR, "questions") == {"gate"}


def test_snakemake_still_needs_the_repair(made):
    assert made("", "code") == {"gate"}, "Snakemake has mended it: remove flexround.stale"
