"""Renderings of a table: LaTeX, HTML and terminal come from the CSV and show what it says."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from table_runs import RECIPES, TABLE, complete, hits, make, numbers, scale, write

from flexround.errors import InputError, SettingsError
from flexround.settings.layout import PARAMS
from flexround.settings.load import read_yaml, validate
from flexround.settings.schema import Recipe, Table
from flexround.stages import tabulate
from flexround.tables import cells, html, latex, published, terminal, tidy

SPECS = sorted((PARAMS / "tables").glob("table*.yaml"))


def test_latex_has_pairs_bold_escapes_and_the_scale(tmp_path: Path) -> None:
    complete(tmp_path)
    text = make(tmp_path)
    fragment = latex.render(text, TABLE, scale())
    assert fragment == latex.render(text, TABLE, scale())
    assert r"B + Strong & 4 / 32 & \bfseries 74.00 & \bfseries 74.00 \\" in fragment
    assert r"B + Third\_100\% & 4 / 32 & 10.00 & 10.00 \\" in fragment
    assert r"\multicolumn{2}{c}{Net\_18}" in fragment
    assert "Bold: best of its bits by more than the noise." in fragment
    assert "Scale: mini" in fragment
    assert "not the paper's numbers" in fragment
    assert fragment.count(r"\midrule") == 2
    assert re.search(r"^% Made by: snakemake .* results/mini/table99\.tex$", fragment, re.MULTILINE)
    assert re.search(r"sha256 [0-9a-f]{64}$", fragment, re.MULTILINE)


def test_missing_and_partial_are_marked_everywhere(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    text = make(tmp_path, seeds=2)
    fragment = latex.render(text, TABLE, scale())
    assert "B + Strong & 4 / 32 & {---} & {---}" in fragment
    assert r"70.00 & 70.00\rlap{\textsuperscript{\dag}}" in fragment
    page = html.render(text, TABLE, scale())
    assert 'class="missing"' in page
    assert "70.00\u2020" in page
    shown = terminal.render(text, scale())
    assert "--/-- (70.00/70.00)" in shown
    assert "70.00~/70.00~ (70.00/70.00)" in shown


def test_spec_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    text = make(tmp_path)
    with pytest.raises(SettingsError, match="descriptive"):
        latex.render(text, TABLE.model_copy(update={"descriptive": ("Method",)}), scale())
    with pytest.raises(SettingsError, match="5 in the CSV"):
        latex.render(text, TABLE.model_copy(update={"groups": TABLE.groups[:1]}), scale())
    with pytest.raises(InputError, match="run tabulate again"):
        latex.render("a,b\n1,2\n", TABLE, scale())


def test_html_is_self_contained_and_shows_the_paper_and_delta(tmp_path: Path) -> None:
    complete(tmp_path, name="big")
    page = html.render(make(tmp_path, comparable=True), TABLE, scale(comparable=True))
    assert '<b>74.00</b> <span class="paper">(70.00)</span> <span class="delta">+4.00</span>' in page
    assert "standard error 1.40 on 1000 examples" in page
    assert "Accuracy (%) of \u201cX\u201d." in page
    assert not re.search(r"https?:|<script|<link|src=", page)


def test_html_of_a_scale_of_its_own_shows_no_delta(tmp_path: Path) -> None:
    complete(tmp_path)
    page = html.render(make(tmp_path), TABLE, scale())
    assert '<b>74.00</b> <span class="paper">(70.00)</span></td>' in page
    assert 'class="delta"' not in page


def test_terminal_names_the_scale_first(tmp_path: Path) -> None:
    complete(tmp_path)
    shown = terminal.render(make(tmp_path), scale())
    first, *rest = shown.splitlines()
    assert first.startswith("Table 99: ours (paper). Scale: mini")
    assert "not the paper's numbers" in first
    assert any(line.startswith("B + Strong") and "74.00*/74.00* (70.00/70.00)" in line for line in rest)
    assert shown.isascii()


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_every_table_compiles(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    write(tmp_path, "strong", hits(7))
    rendered = [(latex.render(make(tmp_path, seeds=2), TABLE, scale()), 99)]
    for path in SPECS:
        spec = validate(Table, read_yaml(path), str(path))
        recipes = {row.recipe: Recipe() for group in spec.groups for row in group.rows}
        found = cells.collect(spec, recipes, "mini", 1, tmp_path)
        rendered.append((latex.render(tidy.to_csv(found, published.load(), spec, scale()), spec, scale()), spec.number))
    for fragment, number in rendered:
        (tmp_path / "page.tex").write_text(latex.standalone(fragment, number))
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        assert "Overfull" not in done.stdout, f"table {number} is wider than the page"


def test_tables_need_no_torch() -> None:
    modules = "best, cells, evaluated, figures, figure_style, grid, html, latex, published, terminal, tidy"
    code = f"import sys\nfrom flexround.tables import {modules}\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# the stage


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Put the made-up table in place of the shipped ones, and return a command line that asks for it."""
    params = SimpleNamespace(scale=scale(), recipes=SimpleNamespace(recipes=RECIPES), tables={99: TABLE})
    monkeypatch.setattr(tabulate, "load_params", lambda name: params)
    monkeypatch.setattr(published, "load", lambda: numbers(TABLE))
    return argparse.Namespace(scale="mini", table=99, seeds=1, evaluated=tmp_path, out=tmp_path / "out")


def test_stage_writes_three_files_and_prints_the_table(
    arguments: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(arguments.evaluated)
    tabulate.run(arguments)
    text = (arguments.out / "table99.csv").read_text()
    assert sorted(path.name for path in arguments.out.iterdir()) == ["table99.csv", "table99.html", "table99.tex"]
    assert text == make(arguments.evaluated)
    assert (arguments.out / "table99.tex").read_text() == latex.render(text, TABLE, scale())
    assert capsys.readouterr().out == terminal.render(text, scale())


@pytest.mark.parametrize("wrong", [{"table": 98}, {"seeds": 0}])
def test_stage_refuses_what_is_not_there(arguments: argparse.Namespace, wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"--{next(iter(wrong))}"):
        tabulate.run(argparse.Namespace(**(vars(arguments) | wrong)))
    assert not arguments.out.exists()
