"""Settings as Snakemake gets them: odd file names run no command, and nonsense ends with its message alone."""

import re
import shlex
import subprocess

import pytest
from test_workflow import ROOT, Project

ODD = "a$(touch ran)`touch ran`; touch ran 'b.yaml"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("project"))
    (project.root / ODD).write_text((ROOT / "tests/smoke.yaml").read_text())
    return project


def test_the_name_of_a_scale_file_is_no_command(project):
    target = "results/smoke/report.html"
    printed = project.snakemake("-n", "--quiet", "host", "--printshellcmds", target, scale=ODD, check=False)
    text = printed.stdout + printed.stderr
    (line,) = (line.partition(": ")[2] for line in text.splitlines() if "flexround.tools.report" in line)
    assert ODD in shlex.split(line)
    subprocess.run(["bash", "-c", f"python() {{ :; }}; mkdir -p logs/smoke; {line}"], cwd=project.root, check=True)
    assert not (project.root / "ran").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (
            b"extends: smoke.yaml\nname: x\nseeds: 1000000000\n",
            "seeds = 1000000000: Input should be less than or equal to 1000",
        ),
    ],
)
def test_nonsense_ends_snakemake_with_its_message(project, text, expected):
    (project.root / "bad.yaml").write_bytes(text)
    done = project.snakemake("-n", scale="bad.yaml", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0
    assert expected in printed
    assert "Traceback" not in printed


def test_what_comes_from_the_command_line_is_quoted_in_every_rule():
    for path in (ROOT / "workflow").rglob("*.smk"):
        for name in re.findall(r"\{params\.(\w+)\}", path.read_text()):
            assert name == "launch", f"{path}: {{params.{name}}} without :q"
