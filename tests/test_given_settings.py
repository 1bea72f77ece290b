"""Settings as Snakemake gets them: odd file names run no command."""

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


def test_what_comes_from_the_command_line_is_quoted_in_every_rule():
    for path in (ROOT / "workflow").rglob("*.smk"):
        for name in re.findall(r"\{params\.(\w+)\}", path.read_text()):
            assert name == "launch", f"{path}: {{params.{name}}} without :q"
