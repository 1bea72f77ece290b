"""The documentation stays true: every link leads somewhere, every named command exists."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flexround.library import command
from flexround.tools import check, compare

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "bench/RESULTS.md",
    ROOT / "config/README.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_exist_and_programs_are_found(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for script in re.findall(r"bench/\w+\.(?:py|sh|yaml)", text):
        assert (ROOT / script).exists(), script
    bare = re.search(r"^(?: {4,})?(?:snakemake|dvc) ", text, re.MULTILINE)
    assert page.name == "RESULTS.md" or not bare or ".venv/bin" in text[: bare.start()], "not on the PATH there"


def test_the_readme_is_read_in_five_minutes():
    text = (ROOT / "README.md").read_text()
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 900
    assert len(text.splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page, tmp_path):
    """Make finds each target, and the programs take their arguments."""
    text = page.read_text().replace("/shared/flexround", str(tmp_path))
    blocks = re.findall(r"^ {4,}((?:make|python -m flexround) .*)$", text, re.MULTILINE)
    for line in {*blocks, *re.findall(r"`((?:make|flexround) [^`]+)`", text)}:
        program, *words = shlex.split(line, comments=True)
        if program == "make":
            made = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
            assert made.returncode == 0 or "no remote is known" in made.stderr, (line, made.stderr)
            continue
        words = words[2:] if program == "python" else words
        if len(words) > 1:
            parser = {"compare": compare, "check": check}.get(words[0], command).parser()
            parser.parse_args(words[words[0] in ("compare", "check") :])


def test_the_shown_rounding_is_the_one_that_is_tested():
    shown = re.findall(r"```\w+\n(.*?)```", (ROOT / "docs/own.md").read_text(), re.DOTALL)
    examples = ROOT / "examples/own_rounding"
    names = ("my_rounding.py", "my_rounding.yaml", "every_table.yaml")
    assert shown[:3] == [(examples / name).read_text() for name in names]


def test_each_section_that_sources_cite_is_there():
    headings = set(re.findall(r"^##+ ([\d.]+) ", (ROOT / "docs/specification.md").read_text(), re.MULTILINE))
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "params").rglob("*.yaml")]
    cited = {
        (section, path.name)
        for path in sources
        for sections in re.findall(r"specification ((?:[\d.]*\d(?:, )?)+)", path.read_text())
        for section in sections.removesuffix(", ").split(", ")
    }
    assert len(cited) > 10
    assert not [where for where in cited if where[0] not in headings]
