"""Renderings of a table: LaTeX, HTML and terminal come from the CSV and show what it says."""

import contextlib
import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from stage_calls import call
from table_runs import (
    OF_RUNS,
    RECIPES,
    SPECS,
    TABLE,
    complete,
    fill,
    hits,
    make,
    numbers,
    scale,
    write,
)
from visible_text import offline, visible

from flexround.errors import InputError, SettingsError
from flexround.jobs import resolve
from flexround.jobs.tabulate import TabulateJob
from flexround.results import grid
from flexround.results.render import html, latex, notes, terminal
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.tables import Table
from flexround.settings.validation import validate

REFERENCE = Path(__file__).resolve().parent.parent / "results/reference"
PREAMBLE = r"""\documentclass{article}
\usepackage[margin=20mm]{geometry}
\usepackage{amsmath,booktabs,caption,graphicx,makecell,siunitx}
\begin{document}
"""
SCORES = {"full-precision": hits(990), "q-adaround-w8a8": hits(800), "q-flexround-w8a8": hits(850)}
SCORES |= {"b-adaround-w4": hits(800), "b-flexround-w4": hits(850)}


def test_latex_has_pairs_bold_escapes_and_the_scale(tmp_path: Path) -> None:
    complete(tmp_path)
    text = make(tmp_path)
    fragment = latex.render(grid.read(text), TABLE, scale())
    assert r"B + Strong & 4 / 32 & \bfseries 74.00 & \bfseries 74.00 \\" in fragment
    assert r"B + Third\_100\% & 4 / 32 & 10.00 & 10.00 \\" in fragment
    assert r"\multicolumn{2}{c}{Net\_18}" in fragment
    assert "Bold: best of its bits by more than the noise." in fragment
    assert "Scale: mini" in fragment
    assert "not the paper's numbers" in fragment
    assert "footnotesize" not in fragment, "no errata"
    assert fragment.count(r"\midrule") == 2
    assert f"\n{latex.FIT}\\begin{{tabular}}{{" in fragment
    assert "\n\\end{tabular}}\n" in fragment
    assert re.search(r"^% Made by: snakemake .* results/mini/table99\.tex$", fragment, re.MULTILINE)
    assert re.search(r"sha256 [0-9a-f]{64}$", fragment, re.MULTILINE)


def test_missing_and_partial_are_marked_everywhere(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    text = make(tmp_path, seeds=2)
    fragment = latex.render(grid.read(text), TABLE, scale())
    assert "B + Strong & 4 / 32 & {---} & {---}" in fragment
    assert r"70.00 & 70.00\rlap{\textsuperscript{\dag}}" in fragment
    page = html.render(grid.read(text), TABLE, scale())
    assert 'class="missing"' in page
    assert "70.00\u2020" in page
    shown = terminal.render(grid.read(text), TABLE, scale())
    assert "--/-- (70.00/70.00)" in shown
    assert re.search(r"\nNone of \d+ cells leads by more than the noise\.\n$", shown)
    assert "70.00~/70.00~ (70.00/70.00)" in shown


def test_cells_of_other_checkpoints_are_said_not_to_be_run(tmp_path: Path) -> None:
    """What lies on the disk of them is not shown either."""
    complete(tmp_path)
    complete(tmp_path, name="big")
    there = make(tmp_path)
    text = make(tmp_path, selected=("other",))
    lines = list(csv.DictReader(text.splitlines()))
    assert {(line["status"], line["value"], line["n_seeds"]) for line in lines} == {("not run", "", "0")}
    assert "{not run} & {not run}" in latex.render(grid.read(text), TABLE, scale())
    page = html.render(grid.read(text), TABLE, scale())
    assert visible(page).count("not run (70.00)") == len(lines)
    assert "not run/not run (70.00/70.00)" in terminal.render(grid.read(text), TABLE, scale())
    chosen = {line["checkpoint"] for line in lines}
    assert make(tmp_path, selected=tuple(chosen)) == there


def test_the_stages_say_not_run_of_what_is_not_selected(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        plan = Plan(load_params("mini"), checkpoints="resnet18-brecq")
        call("tabulate", resolve.inputs(plan, "tabulate", 2))
        call("claims", resolve.inputs(plan, "claims"))
    lines = list(csv.DictReader((tmp_path / "results/mini/table2.csv").read_text().splitlines()))
    assert {(line["checkpoint"] == "resnet18-brecq", line["status"]) for line in lines} == {
        (True, "missing"),
        (False, "not run"),
    }
    for suffix in ("tex", "html"):
        assert "not run" in (tmp_path / f"results/mini/table2.{suffix}").read_text()
    verdicts = csv.DictReader((tmp_path / "results/mini/claims.csv").read_text().splitlines())
    assert {line["verdict"] for line in verdicts} == {"not run"}


def test_spec_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    text = make(tmp_path)
    with pytest.raises(SettingsError, match="descriptive"):
        latex.render(grid.read(text), TABLE.model_copy(update={"descriptive": ("Method",)}), scale())
    with pytest.raises(SettingsError, match="5 in the CSV"):
        latex.render(grid.read(text), TABLE.model_copy(update={"groups": TABLE.groups[:1]}), scale())
    with pytest.raises(InputError, match="made by another version; make it again"):
        grid.read("a,b\n1,2\n")


def test_html_is_self_contained_and_shows_the_paper_and_delta(tmp_path: Path) -> None:
    complete(tmp_path, name="big")
    page = html.render(grid.read(make(tmp_path, comparable=True)), TABLE, scale(comparable=True))
    cell = r'<b>74.00</b>\s*<span class="paper">\(70.00\)</span>\s*<span class="delta">.*?✗.*?\+4.00</span>'
    assert re.search(cell, page, re.DOTALL)
    assert "standard error 1.39 on 1000 examples" in page
    assert re.findall(r'<th scope="col">(.+)</th>', page)[-2:] == ["top-1", "top-5"]
    assert "Accuracy (%) of \u201cX\u201d." in page
    assert "with its own models" not in page
    assert "<sup>" not in page, "no errata"
    assert offline(page)


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
    assert notes.plain(written) == shown


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_reader_sees_whose_numbers_these_are(name: str) -> None:
    table = OF_RUNS[name]
    text = (REFERENCE / f"table{table.number}.csv").read_text()
    shown = visible(html.render(grid.read(text), table, scale()))
    words = "Scale: mini, with its own models and data instead of the paper's; not the paper's numbers. Each cell: ours"
    assert words in shown
    assert notes.plain(table.caption).strip() in shown


def test_terminal_names_the_scale_first(tmp_path: Path) -> None:
    complete(tmp_path)
    shown = terminal.render(grid.read(make(tmp_path)), TABLE, scale())
    first, *rest = shown.splitlines()
    assert first.startswith("Table 99: ours (paper). Scale: mini")
    assert "not the paper's numbers" in first
    assert any(line.startswith("B + Strong") and "74.00*/74.00* (70.00/70.00)" in line for line in rest)
    assert shown.isascii()
    assert rest[1].endswith("top-1/top-5")


def test_a_section_stands_left_of_the_method_in_the_middle_of_its_rows(tmp_path: Path) -> None:
    fragment = latex.render(grid.read(fill(tmp_path, OF_RUNS["table04"], SCORES)), OF_RUNS["table04"], scale())
    lines = fragment.splitlines()
    body = lines[lines.index(r"\toprule") + 1 : lines.index(r"\bottomrule")]
    pair = " & ".join(["80.00 & 80.00"] * 5)
    assert body[0].startswith(r"Dataset & Method & \multicolumn{2}{c}{BERT\textsubscript{BASE}} & ")
    assert [line.split(" & ")[:2] for line in body[1:6]] == [
        [r"\midrule"],
        ["", "Full-precision"],
        [r"\cmidrule{2-12}"],
        ["MNLI", "Q+AdaRound"],
        ["", "Q+FlexRound (Ours)"],
    ]
    assert body[4] == rf"MNLI & Q+AdaRound & {pair} \\"
    assert body.count(r"\midrule") == body.count(r"\cmidrule{2-12}") == 3
    assert "Bold: best of its section by more than the noise." in fragment
    assert r"\begin{tabular}{clS[table-format=2.2]@{~/~}S[table-format=2.2]S" in fragment


def test_a_section_is_named_again_after_another_one() -> None:
    table = load_params("real").tables[5]
    lines = latex.render(grid.read((REFERENCE / "real5.csv").read_text()), table, scale()).splitlines()
    named = [line.split(" & ")[0] for line in lines if line.startswith("Per ")]
    assert named == ["Per channel", "Per tensor", "Per channel"]


def test_a_row_of_fewer_metrics_fills_its_columns(tmp_path: Path) -> None:
    text = fill(tmp_path, OF_RUNS["table04"], SCORES)
    fragment = latex.render(grid.read(text), OF_RUNS["table04"], scale())
    assert "MRPC & Q+AdaRound & " + " & ".join([r"\multicolumn{2}{c}{80.00}"] * 5) in fragment
    assert r" & Q+FlexRound (Ours) & \multicolumn{2}{c}{\bfseries 85.00} & " in fragment
    page = html.render(grid.read(text), OF_RUNS["table04"], scale())
    assert re.findall(r'<th scope="col">(\w+)<', page) == ["Section", "Method", "Metrics"]
    assert page.count(' colspan="2" title=') == 2 * 5 + 5
    assert "matched/mismatched" in visible(page)
    lines = terminal.render(grid.read(text), OF_RUNS["table04"], scale()).splitlines()
    mrpc = [line for line in lines if " MRPC " in line]
    assert [line.split("  ")[0] for line in mrpc] == ["Full-precision", "Q+AdaRound", "Q+FlexRound (Ours)"]
    assert mrpc[2].split()[-2:] == ["85.00*", "(86.76)"]


def test_hover_tells_the_rival_and_how_sure_the_lead_is_and_a_scale_of_its_own_has_no_delta(tmp_path: Path) -> None:
    complete(tmp_path)
    page = html.render(grid.read(make(tmp_path)), TABLE, scale())
    assert "against B + Weak: 4.00 \u00b1 0.62, p &lt; 0.0001; imagenet/net/strong" in page
    assert page.count("against") == 2 * 3  # not the reference rows
    assert re.search(r'<b>74.00</b>\s*<span class="paper">\(70.00\)</span>\s*</td>', page)
    assert 'class="delta"' not in page


def test_an_erratum_of_a_row_stands_at_its_method(tmp_path: Path) -> None:
    table = OF_RUNS["table20"]
    text = fill(tmp_path, table, SCORES)
    assert "72.93" in text.splitlines()[7 * 7 + 4], "the published value stays"
    fragment = latex.render(grid.read(text), table, scale())
    marked = [line for line in fragment.splitlines() if r"\textsuperscript{a}" in line]
    assert len(marked) == 2
    assert marked[0].startswith(r"LLaMA-33B & Q+AdaRound\textsuperscript{a} & 8 / 8 & 80.00 & ")
    assert marked[1].startswith(
        r"{\footnotesize \textsuperscript{a}~The seven values that the paper prints in this row "
    )
    assert fragment.index(r"\end{tabular}") < fragment.index(marked[1]) < fragment.index(r"\end{table*}")
    page = html.render(grid.read(text), table, scale())
    assert page.count("<sup>a</sup>") == 2
    head, tail = page.split("Q+AdaRound<sup>a</sup></th>")
    assert head.count("Q+FlexRound (Ours)</th>") == 2, "the last of three models"
    assert '<p class="small"><sup>a</sup> The seven values that the paper prints in this row ' in tail


def test_an_erratum_of_a_cell_stands_at_its_number(tmp_path: Path) -> None:
    table = OF_RUNS["table21"]
    text = fill(tmp_path, table, SCORES)
    fragment = latex.render(grid.read(text), table, scale())
    numbers = r" & \bfseries 85.00" * 3 + r" & \bfseries 85.00\rlap{\textsuperscript{a}}" + r" & \bfseries 85.00" * 3
    assert rf" & B+FlexRound (Ours) & 4 / 16{numbers} & " in fragment
    assert fragment.count(r"\textsuperscript{a}") == 2
    page = html.render(grid.read(text), table, scale())
    assert '<span class="paper">(72.61<sup>a</sup>)</span>' in page
    assert page.count("<sup>a</sup>") == 2
    assert "although B+AdaRound’s 72.69 is higher" in page


def test_a_partial_cell_with_an_erratum_has_both_marks(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    errata = [{"row": 3, "column": "Net_18", "text": "Wrong."}]
    table = validate(Table, TABLE.model_dump() | {"errata": errata}, "table99.yaml")
    fragment = latex.render(grid.read(make(tmp_path, seeds=2, table=table)), table, scale())
    assert r"70.00 & 70.00\rlap{\textsuperscript{a\dag}}" in fragment


@pytest.mark.parametrize("wrong", [{"row": 6}, {"row": 3, "column": "Net_19"}])
def test_errata_of_no_cell_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=f"errata: no row {wrong['row']}"):
        validate(Table, TABLE.model_dump() | {"errata": [wrong | {"text": "Wrong."}]}, "table99.yaml")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_every_table_compiles(tmp_path: Path) -> None:
    write(tmp_path, "weak", hits(700))
    write(tmp_path, "strong", hits(7))
    texts = [(make(tmp_path, seeds=2), TABLE)]
    texts += [((REFERENCE / f"table{spec.number}.csv").read_text(), spec) for spec in SPECS.values()]
    fragments = [latex.render(grid.read(text), spec, scale()) + "\\clearpage\n" for text, spec in texts]
    (tmp_path / "page.tex").write_text(PREAMBLE + "".join(fragments) + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout, "a table is wider than the page: the lines of page.tex say which"


# the stage


def test_stage_writes_three_files_and_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    complete(Path("results"))
    job = TabulateJob(
        table=TABLE,
        scale=scale(),
        seeds=dict.fromkeys((task for task, _ in TABLE.pairs()), 1),
        recipes=RECIPES,
        numbers=tuple(numbers(TABLE).items()),
        settings=(),
        out=Path("out/table99.csv"),
    )
    Path("job.json").write_text(job.model_dump_json())
    call("tabulate", {"job": "job.json"})
    text = job.out.read_text()
    assert sorted(path.name for path in job.out.parent.iterdir()) == ["table99.csv", "table99.html", "table99.tex"]
    assert text == make(Path("results"))
    assert Path("out/table99.tex").read_text() == latex.render(grid.read(text), TABLE, scale())
    assert capsys.readouterr().out == terminal.render(grid.read(text), TABLE, scale())
