"""What a run says on the terminal: our logger under the real Snakemake, on a workflow of a few lines."""

import functools
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from flexround.jobs import resolve
from flexround.tools import target_hints
from snakemake_logger_plugin_flexround import LogHandler

SNAKEFILE = """
rule all:
    input: "results/mini/evaluated/t/c/r/seed0/metrics.json", "results/b", "results/page"

rule publish_page:
    output: "results/page"
    shell: "touch {output}"

rule evaluate:
    output: "results/mini/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}/metrics.json"
    log: text="logs/{task}/{checkpoint}/{recipe}/{seed}.log", usage="logs/{task}/{checkpoint}/{recipe}/{seed}.json"
    shell: "cp metrics.json {output} && touch {log}"

rule plain:
    output: "results/{name}"
    wildcard_constraints: name="b|broken"
    log: text="logs/{name}.log"
    shell: "if [ {wildcards.name} = b ]; then touch {output}; else echo 'INFO x' > {log};"
           " echo '12:00:00 error: weights.pt: 3 bytes are missing; fetch it again' >> {log}; exit 2; fi"
"""


FILES = functools.cache(target_hints.files_of_scales)  # of all scales of params/


@pytest.fixture
def run(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "metrics.json").write_text('{"metrics": {"top1": 71.236}}')

    def snakemake(*options, targets=()):
        command = [sys.executable, "-m", "snakemake", "--logger", "flexround", "--cores", "1", *options, "--", *targets]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return snakemake


def test_each_job_is_a_line_with_what_it_found(run):
    done = run()
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0] == "4 jobs: 1 evaluate, 1 plain, 1 publish_page; logs/ has a log of each"
    assert sum("evaluate t c r seed 0 (" in line and line.endswith("s): top1 71.24") for line in lines) == 1
    assert lines[-2].startswith("[4/4]")
    assert re.fullmatch(r"done in \d+ s; open results/page", lines[-1])
    assert len(lines) == 6
    first, second = run(targets=["results/x/y"]).stderr.splitlines()
    assert first == "No rule to produce results/x/y."
    assert second.startswith("`snakemake -n --quiet host` lists all")


def test_a_failure_is_told_with_its_reason_and_the_way_on(run):
    done = run("--keep-going", targets=["results/broken", "results/b"])
    assert done.returncode == 1
    failed = done.stderr[done.stderr.index("FAILED") :].splitlines()
    assert failed[:3] == [
        "FAILED: plain",
        "  12:00:00 error: weights.pt: 3 bytes are missing; fetch it again",
        "  log: logs/broken.log",
    ]
    assert "1 jobs failed: plain. Fix the cause above, then run the same command again" in done.stderr
    assert "CalledProcessError" not in done.stderr


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("results/x/y", "\n`snakemake -n --quiet host` lists all that is made; names in paths are those of params/"),
        ("result/tabel3.csv", "did you mean results/table3.csv"),
        ("results/real3.csv", "\nanother scale makes it: --config scale=real"),
    ],
)
def test_a_wrong_target_gets_a_suggestion(monkeypatch, target, meant):
    monkeypatch.setattr(target_hints, "files_of_scales", FILES)
    assert meant in target_hints.hint(f"No rule to produce {target} (if you use input functions")


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    # One process, not a list of commands: a shell that is interrupted between two of them goes on with the next.
    wait = "import signal, time; signal.signal(2, signal.SIG_DFL); open('started', 'w'); time.sleep(60)"
    (tmp_path / "job.sh").write_text(f'exec python3 -c "{wait}"\n')
    rule = 'rule long:\n    output: "out"\n    shell: "exec sh job.sh"\n'
    (tmp_path / "Snakefile").write_text(rule)
    command = [sys.executable, "-m", "snakemake", "--logger", "flexround", "--cores", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)
    while not (tmp_path / "started").exists():
        assert started.poll() is None
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    text, _ = started.communicate(timeout=30)
    assert started.returncode != 0
    assert text.rstrip().endswith("it resumes where this run stopped"), text  # "FAILED" may precede it
    assert "Traceback" not in text


def test_jobs_that_an_interruption_ends_do_not_fail():
    handler = object.__new__(LogHandler)
    handler.stopped = False
    handler._own_words("Terminating processes on user request, this might take some time.", logging.INFO)
    assert not handler._failure("long", {})


def test_a_part_of_a_workflow_counts_its_own_jobs(tmp_path):
    rules = 'rule b:\n    input: "a"\n    output: touch("b")\nrule a:\n    output: touch("a")\n'
    (tmp_path / "Snakefile").write_text(rules)
    command = [sys.executable, "-m", "snakemake", "--logger", "flexround", "--cores", "1", "b", "--until", "a"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "[1/1] a (" in ran.stderr + ran.stdout
    assert "done in" in ran.stderr + ran.stdout


def test_the_time_left_weighs_jobs_by_their_expected_seconds(monkeypatch):
    planned = {name: ("reconstruct", seconds) for name, seconds in zip("abcd", (10.0, 30.0, 40.0, 50.0), strict=True)}
    monkeypatch.setattr(resolve, "EXPECTED", planned | {"e": ("evaluate", 2.0)})
    handler = object.__new__(LogHandler)
    handler.counts = Counter(reconstruct=3, evaluate=1)  # of four planned reconstructions one is up to date
    handler.done = [{"rule_name": "reconstruct", "output": ["a"]}]
    assert handler._share_left() == (2 * 40 + 2) / 10
