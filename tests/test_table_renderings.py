"""Renderings of a table: LaTeX, HTML and terminal come from the CSV and show what it says."""

import contextlib
import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from stage_calls import call
from table_runs import OF_RUNS, Q_W8A8, SPECS, TABLE, complete, fill, hits, loaded, make, scale, write, write_run
from visible_text import offline, visible

from flexround.jobs import resolve
from flexround.results import grid
from flexround.results.render import html, latex, terminal, words
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.settings.tables import Table
from flexround.settings.validation import validate

REFERENCE = Path(__file__).resolve().parent.parent / "results/reference"
PREAMBLE = r"""\documentclass{article}
\usepackage[margin=20mm]{geometry}
\usepackage{amsmath,booktabs,caption,graphicx,makecell,siunitx}
\begin{document}
"""
SCORES = Q_W8A8 | {"b-adaround-w4": hits(800), "b-flexround-w4": hits(850)}


def rendered(text: str, table: Table = TABLE, comparable: bool = False) -> tuple[str, str, str]:
    """Return a table in LaTeX, in HTML and for a terminal."""
    made = grid.load(io.StringIO(text))
    return tuple(writer.render(made, table, scale(comparable)) for writer in (latex, html, terminal))


def test_numbers_stand_beside_the_papers_and_the_scale_is_named(tmp_path: Path) -> None:
    complete(tmp_path)
    fragment, page, shown = rendered(make(tmp_path))
    assert r"B + Strong & 4 / 32 & \bfseries 74.00 & \bfseries 74.00 \\" in fragment
    assert r"B + Third\_100\% & 4 / 32 & 10.00 & 10.00 \\" in fragment
    assert r"\multicolumn{2}{c}{Net\_18}" in fragment
    assert "Bold: best of its bits by more than the noise." in fragment
    assert fragment.count(r"\midrule") == 2
    assert re.search(r"^% Made by: snakemake .* results/mini/table99\.tex$", fragment, re.MULTILINE)
    assert "against B + Weak: 4.00 \u00b1 0.62, p &lt; 0.0001; imagenet/net/strong" in page
    assert page.count("against") == 2 * 3  # not the reference rows
    assert re.search(r'<b>74.00</b>\s*<span class="paper">\(70.00\)</span>\s*</td>', page)
    assert 'class="delta"' not in page
    assert offline(page)
    first, *rest = shown.splitlines()
    assert first.startswith("Table 99: ours (paper). Scale mini: own models and data")
    assert rest[1].endswith("top-1/top-5")
    assert any(line.startswith("B + Strong") and "74.00*/74.00* (70.00/70.00)" in line for line in rest)
    assert shown.isascii()
    complete(tmp_path, name="big")
    page = rendered(make(tmp_path, comparable=True), comparable=True)[1]
    cell = r'<b>74.00</b>\s*<span class="paper">\(70.00\)</span>\s*<span class="delta">.*?✗.*?\+4.00</span>'
    assert re.search(cell, page, re.DOTALL), "a comparable scale shows differences"


def test_missing_and_partial_are_marked_everywhere(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    errata = [{"row": 3, "column": "Net_18", "text": "Wrong."}]
    marked = validate(Table, TABLE.model_dump() | {"errata": errata}, "table99.yaml")
    fragment, page, shown = rendered(make(tmp_path, seeds=2), marked)
    assert "B + Strong & 4 / 32 & {---} & {---}" in fragment
    assert r"70.00 & 70.00\rlap{\textsuperscript{a\dag}}" in fragment
    assert 'class="missing"' in page
    assert "70.00\u2020" in page
    assert "--/-- (70.00/70.00)" in shown
    assert "70.00~/70.00~ (70.00/70.00)" in shown
    assert re.search(r"\nNone of \d+ cells leads by more than the noise\.\n$", shown)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"BERT\textsubscript{Base}, OPT\textsubscript{125M}", "BERT-Base, OPT-125M"),
        (r"$s_1$, $\mathbf{S}_2$ and $\mathbf{s}_3$ of a\_1", "s₁, S₂ and s₃ of a_1"),
        (r"``B + X'' of BRECQ's; `Q + Y'", "“B + X” of BRECQ’s; ‘Q + Y’"),
        (r"5\% of Table~5: $\lfloor \mathbf{W} / s_1 \odot \mathbf{S}_2 \rceil$", "5% of Table 5: ⌊ W / s₁ ⊙ S₂ ⌉"),
    ],
)
def test_captions_as_plain_text(written: str, shown: str) -> None:
    assert words.plain(written) == shown


def test_sections_stand_in_the_middle_and_short_rows_are_filled(
    tmp_path: Path,
) -> None:
    fragment, page, shown = rendered(fill(tmp_path, OF_RUNS["table04"], SCORES), OF_RUNS["table04"])
    assert r"\begin{tabular}{clS[table-format=2.2]@{~/~}S[table-format=2.2]S" in fragment
    assert (
        r"""\midrule
 & Full-precision & 99.00 & 99.00 & 99.00 & 99.00 & 99.00 & 99.00 & 99.00 & 99.00 & 99.00 & 99.00 \\
\cmidrule{2-12}
MNLI & Q+AdaRound & 80.00 & 80.00 & 80.00 & 80.00 & 80.00 & 80.00 & 80.00 & 80.00 & 80.00 & 80.00 \\
 & Q+FlexRound (Ours) & """
        in fragment
    )
    assert "MRPC & Q+AdaRound & " + " & ".join([r"\multicolumn{2}{c}{80.00}"] * 5) in fragment
    assert r" & Q+FlexRound (Ours) & \multicolumn{2}{c}{\bfseries 85.00} & " in fragment
    assert "Bold: best of its section by more than the noise." in fragment
    assert re.findall(r'<th scope="col">(\w+)<', page) == ["Section", "Method", "Metrics"]
    assert "matched/mismatched" in visible(page)
    mrpc = [line for line in shown.splitlines() if " MRPC " in line]
    assert [line.split("  ")[0] for line in mrpc] == ["Full-precision", "Q+AdaRound", "Q+FlexRound (Ours)"]
    assert mrpc[2].split()[-2:] == ["85.00*", "(86.76)"]


def test_errata_stand_at_their_numbers_which_stay(tmp_path: Path) -> None:
    fragment, page, _ = rendered(fill(tmp_path, OF_RUNS["table21"], SCORES), OF_RUNS["table21"])
    number, below = [line for line in fragment.splitlines() if r"\textsuperscript{a" in line]
    assert r" & \bfseries 85.00\rlap{\textsuperscript{a}} & \bfseries 85.00" in number
    assert below.startswith(r"{\footnotesize \textsuperscript{a}~")
    assert page.count("<sup>a</sup>") == 2
    after = page.partition('<span class="paper">(72.61<sup>a</sup>)</span>')[2]
    assert "although B+AdaRound" in after.partition('<p class="small"><sup>a</sup> ')[2]
    row = rendered(fill(tmp_path / "row", OF_RUNS["table20"], SCORES), OF_RUNS["table20"])[0]
    assert r"LLaMA-33B & Q+AdaRound\textsuperscript{a} & 8 / 8 & 80.00 & " in row


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_every_table_compiles(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    write(tmp_path, "strong", hits(7))
    texts = [(make(tmp_path, seeds=2), TABLE)]
    texts += [((REFERENCE / f"table{spec.number}.csv").read_text(), spec) for spec in SPECS.values()]
    fragments = [latex.render(grid.load(io.StringIO(text)), spec, scale()) + "\\clearpage\n" for text, spec in texts]
    (tmp_path / "page.tex").write_text(PREAMBLE + "".join(fragments) + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout, "a table is wider than the page: the lines of page.tex say which"


def test_the_stage_writes_three_files_and_prints_selected_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(loaded("mini"), {"checkpoints": "resnet18-brecq"})
    table, made = plan.params.tables[2], tmp_path / "results/mini"
    for run in (plan.table_runs(2)[0], Run("mini", "imagenet", "resnet50-brecq", "full-precision", 0)):
        write_run(tmp_path / "results", run, hits(900), ("top1", "top5"))
    with contextlib.chdir(tmp_path):
        call("tabulate", resolve.job(plan, "tabulate", 2).file)
    text = (made / "table2.csv").read_text()
    lines = list(csv.DictReader(text.splitlines()))
    assert [line["value"] for line in lines if line["status"] == "computed"] == ["90.00", "90.00"]
    others = [line for line in lines if line["checkpoint"] != "resnet18-brecq"]
    assert {(line["status"], line["value"], line["n_seeds"]) for line in others} == {("not run", "", "0")}
    read = grid.load(io.StringIO(text))
    assert sorted(path.name for path in made.glob("*.*")) == ["table2.csv", "table2.html", "table2.tex"]
    assert (made / "table2.tex").read_text() == latex.render(read, table, plan.scale)
    assert (made / "table2.html").read_text() == html.render(read, table, plan.scale)
    assert (shown := capsys.readouterr().out) == terminal.render(read, table, plan.scale)
    assert r"& {not run} & {not run} \\" in (made / "table2.tex").read_text()
    assert visible((made / "table2.html").read_text()).count("not run (") == len(others)
    assert shown.count("not run/not run (") == len(others) / 2
