"""Every command of the tutorial prints what the tutorial shows; those that compute are planned."""

import re
import shutil
from pathlib import Path

import pytest
from test_workflow import Project

from flexround.tools import plan

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/one-number.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


SHOWN = [
    (command, output)
    for block in blocks("console")
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
COMPUTING = [line for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone in which table 3 is made: its published results stand for it."""
    project = Project(tmp_path_factory.mktemp("tutorial"))
    shutil.copytree(ROOT / "results/reference", project.root / "results/reference")
    shutil.copy2(ROOT / "results/reference/table3.csv", project.root / "results/table3.csv")
    return project


def run(command: str, project: Project) -> str:
    done = project.run("sh", "-c", command)
    return re.sub(r"[0-9a-f]{16}(?=\.json)", "DIGEST", done.stdout + done.stderr)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command[:40] for command, _ in SHOWN])
def test_what_is_shown_is_what_comes_out(project, command, shown):
    out = run(command, project)
    lines = [line.strip() for line in shown.splitlines() if line != "..."]
    printed = [line.strip() for line in out.splitlines()]
    if "...\n" not in shown:
        assert printed == lines
    assert not [line for line in lines if line not in printed], out


def test_commands_that_compute_are_planned(project, capsys):
    assert COMPUTING == [
        "export PATH=$PWD/.venv/bin:$PATH",
        "make results/table3.csv",
        "make plan TABLE=3 SCALE=paper",
    ]
    for command in COMPUTING[1:]:
        assert run(command.replace("make", "make -n -o .venv/installed"), project)
    plan.run(plan.parser().parse_args(["--scale", "paper", "--table", "3"]))
    planned = capsys.readouterr().out
    hours = float(re.findall(r"^ +together .* ([\d.]+) h$", planned, re.MULTILINE)[-1])
    assert f"about {hours:.0f} GPU hours" in TEXT


def test_each_number_of_the_text_is_in_what_is_shown():
    printed = "".join(output for _, output in SHOWN) + TEXT[TEXT.index("    weights 2/10") :].split("\n")[0]
    prose = re.sub(r"^```.*?^```|^    .*?$|\]\([^)]*\)", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    numbers = {float(number) for number in re.findall(r"\b\d+\.\d{2,}\b", prose)}
    known = {float(number) for number in re.findall(r"\d+\.\d+", printed)}
    assert numbers
    for number in numbers:
        assert any(round(value, len(str(number).partition(".")[2])) == number for value in known), number
