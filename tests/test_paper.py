"""The document of all tables, and the status table and figure of the README."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from table_runs import OF_RUNS, claims_csv, fill, hits, settings_csv

from flexround.errors import InputError
from flexround.results import grid
from flexround.results.claims import judged, specs
from flexround.results.claims.judged import VERDICTS
from flexround.results.render import document, figure_style, latex, leads, overview, readme_tables, terminal
from flexround.results.render.summary_sentences import outcomes
from flexround.settings.layout import PARAMS
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools import readme as stage

ROOT = Path(__file__).resolve().parent.parent
PLAN = Plan(load_params("mini"))
NAMES = [table.name for table in PLAN.params.tables.values()] + [f"figure{number}" for number in PLAN.figures]
ITEMS = [item for part in document.parts(NAMES) for item in part.items]
TABLE4 = {"full-precision": hits(990), "q-adaround-w8a8": hits(800), "q-flexround-w8a8": hits(850)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables 4 and 14, and a figure."""
    root = tmp_path_factory.mktemp("work")
    mini = root / "results/mini"
    texts = {4: fill(root / "runs", OF_RUNS["table04"], TABLE4)}
    texts[14] = settings_csv(14, PLAN.params)
    mini.mkdir(parents=True)
    for number, text in texts.items():
        (mini / f"table{number}.csv").write_text(text)
        (mini / f"table{number}.tex").write_text(latex.render(grid.read(text), PLAN.params.tables[number], PLAN.scale))
    drawn = figure_style.new_figure(2, 1, "dot", "mini")
    figure_style.save(drawn, mini / "figure3")
    return root


def test_the_order_has_every_table_and_figure_once():
    expected = [*(f"table{n}" for n in PLAN.params.tables), *(f"figure{n}" for n in PLAN.figures)]
    assert sorted(ITEMS) == sorted(expected)
    tables = [item for item in ITEMS if item.startswith("table")]
    assert tables == sorted(tables, key=lambda name: int(name.removeprefix("table")))


def test_the_document_has_everything_in_order_and_names_what_is_missing(root):
    text = document.source(root, PLAN, "mini")
    body = text[text.index(r"\tableofcontents") :]
    captions = re.findall(r"\\label\{(tab:[^}]+)\}|\\includegraphics\{(\w+)\}", body)
    assert [next(filter(None, found)) for found in captions] == ["figure3", "tab:glue", "tab:glue-ft"]
    assert "Ablation" not in body, "a part with nothing in it"
    assert body.count(r"\setcounter{table}") == 2
    assert r"\setcounter{table}{3}" in body
    first = text[: text.index(r"\tableofcontents")]
    assert f"3 of {len(ITEMS)} tables and figures" in first
    assert "Table~3" in first
    assert "Table~4" not in first
    assert "not the paper's numbers" in first
    assert document.source(root, PLAN, "mini") == text
    assert str(root) not in text
    table = (root / "results/mini/table4.tex").read_text()
    above = table[: table.index(r"\caption{")]
    assert r"\setlength{\belowcaptionskip}{6pt}" in above, "a plain article has none: its captions stand below"


def test_tables_that_were_not_computed_are_those_published_and_say_so(root, tmp_path):
    (tmp_path / "work/results").mkdir(parents=True)
    (tmp_path / "work/results/mini").symlink_to(root / "results/mini")
    (tmp_path / "work/results/reference").symlink_to(ROOT / "results/reference")
    text = document.source(tmp_path / "work", PLAN, "mini")
    tables = re.findall(r"\\caption\{(.*?)\\label\{(tab:[^}]+)\}", text, re.DOTALL)
    assert len(tables) == len(PLAN.params.tables)
    computed = {label for caption, label in tables if document.PUBLISHED not in caption}
    assert computed == {"tab:glue", "tab:glue-ft"}
    assert f"{len(tables) - 2} tables were not computed here" in text
    assert document.source(tmp_path / "work", Plan(load_params("paper")), "paper").count(document.PUBLISHED) == 0


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX")
def test_the_document_compiles_to_the_same_bytes(root, tmp_path):
    source = tmp_path / "paper.tex"
    (tmp_path / "mini").symlink_to(root / "results/mini")
    source.write_text(document.source(root, PLAN, "mini"))
    document.compile_pdf(source)
    once = source.with_suffix(".pdf").read_bytes()
    document.compile_pdf(source)
    assert source.with_suffix(".pdf").read_bytes() == once
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mini", "paper.pdf", "paper.tex"]


@pytest.mark.parametrize(
    ("latex", "message"),
    [
        (None, "texlive-science"),
        (b"(./paper.tex\n! LaTeX Error: File `siunitx.sty' not found.\n", "siunitx.sty' not found. Install it"),
    ],
)
def test_what_latex_lacks_is_named(tmp_path, monkeypatch, latex, message):
    monkeypatch.setattr(shutil, "which", lambda _: latex and "/bin/pdflatex")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, latex, b""))
    with pytest.raises(InputError, match=message):
        document.compile_pdf(tmp_path / "paper.tex")


def against_adaround(text, name="claims"):
    """Return the comparisons of FlexRound with AdaRound in a ``claims.csv``."""
    claims = judged.read(text, specs.load(PARAMS / f"{name}.yaml").claims)
    return judged.against_adaround(claims)


def standings(root: Path) -> list[overview.Standing]:
    return [
        overview.standing(table, root / "results/mini" / f"{table.name}.csv") for table in PLAN.params.tables.values()
    ]


def test_the_status_table_has_a_line_for_every_table(root):
    text = readme_tables.status(standings(root), PLAN.scale)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(PLAN.params.tables)
    assert lines[0] == "| table | about | status | cells | FlexRound best |"
    assert "| 4 | GLUE | computed | 75 | 25 of 25 |" in lines
    assert "| 3 | ImageNet | not run | -- | -- |" in lines


def test_a_comparable_scale_has_the_farthest_cell(root):
    text = readme_tables.status(standings(root), PLAN.scale.model_copy(update={"comparable": True}))
    assert "| farthest from the paper |" in text


def test_only_what_is_between_the_markers_is_replaced():
    begin, end = readme_tables.MARKERS["status"]
    page = f"above\n{begin}\nold\n{end}\nbelow\n"
    assert readme_tables.replaced(page, "status", r"\1 new" + "\n") == page.replace("old", r"\1 new")
    with pytest.raises(InputError, match="0 places"):
        readme_tables.replaced("nothing", "status", "new\n")


def test_the_readme_shows_the_status_of_the_reference_results():
    reference = ROOT / "results/reference"
    found = [
        overview.standing(table, reference / f"{table.name}.csv") for _, table in sorted(PLAN.params.tables.items())
    ]
    readme = (ROOT / "README.md").read_text()
    assert readme_tables.replaced(readme, "status", readme_tables.status(found, PLAN.scale)) == readme, (
        "run: make status"
    )


def test_the_readme_says_how_often_flexround_beats_adaround():
    lines = {
        scale: against_adaround((ROOT / f"results/reference/{name}").read_text(), params)
        for scale, name, params in (("mini", "claims.csv", "claims"), ("real", "real-claims.csv", "claims-real"))
    }

    def better(*places):
        return [line.verdict for line in lines["mini"] if not places or line.place in places]

    readme = " ".join((ROOT / "README.md").read_text().split())
    found = better()
    form = "better in {0} of {3} comparisons, worse in {1} and inside the noise in {2}"
    assert form.format(*(found.count(verdict) for verdict in VERDICTS[:3]), len(found)) in readme
    corrected = [line.outcome.partition(" ")[0].rstrip(",") for line in lines["real"]]
    form = (
        "Of {4} comparisons on released networks, corrected for their number, FlexRound is better in {0}, "
        "worse in {1} and equal within narrow bounds in {2}; {3} are undecided"
    )
    kinds = ("better", "worse", "equal", "undecided")
    assert form.format(*(corrected.count(kind) for kind in kinds), len(corrected)) in readme
    found = better("table 5", "table 23", "table 24")
    assert f"in {found.count('holds')} of {len(found)} cells of tables 5, 23 and 24." in readme
    assert outcomes(lines["real"]) in readme, "run: make evidence"
    of_20 = [line.outcome for line in lines["real"] if (line.place, line.column) == ("real 2", "ResNet-20")]
    found = f"ResNet-20 with activations of 3 and 4 bit, in {of_20.count('better')} of {len(of_20)} cells"
    assert found in readme


def test_the_readme_shows_what_a_run_prints_at_its_end():
    found = grid.read((ROOT / "results/reference/table3.csv").read_text())
    printed = terminal.render(found, PLAN.params.tables[3], PLAN.scale)
    shown = re.search(r"what to open:\n\n((?:    .+\n)+)", (ROOT / "README.md").read_text())[1]
    lines = [line.strip() for line in shown.splitlines()]
    assert len(lines) == 6
    assert set(lines) <= set(printed.splitlines()), "copy its last lines into README.md"


CLAIMS = claims_csv("""place,section,column,metric,bits,recipe,other_recipe,criterion,margin,noise,verdict
table 2,,R18,top1,4/32,b-flexround-w4,b-adaround-w4,better,1.50,0.50,holds
table 2,,R18,top1,4/32,b-flexround-w4,b-adaround-w4,better,1.50,0.50,holds
table 2,,R18,top1,4/32,b-flexround-w4,b-adaquant-w4,better,9.00,0.50,holds
table 10,,R18,top1,4/32,q-flexround-w4-tuned,q-adaround-w4,better,-0.10,0.20,inside the noise
table 10,,R50,top1,4/32,q-flexround-w4,q-adaround-w4,better,,,not run
table 10,,R50,top5,4/32,q-flexround-w4,q-adaround-w4,better,-1.00,0.00,does not hold
table 10,,R50,top5,4/32,q-flexround-w4,q-adaround-w4,worse by less than 2,-1.00,0.00,holds
""")


def test_leads_are_those_over_adaround_each_cell_once_in_a_line_for_each_table():
    lines = against_adaround(CLAIMS)
    assert [(line.place, leads.multiple(line.margin, line.noise), line.verdict) for line in lines] == [
        ("table 2", 3.0, "holds"),
        ("table 10", -0.5, "inside the noise"),
        ("table 10", -leads.REACH, "does not hold"),
    ]
    axes = leads.draw(lines, "title", "mini").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Table 2", "Table 10"]
    points = [(x, round(y)) for collection in axes.collections for x, y in collection.get_offsets()]
    assert sorted(points) == [(-leads.REACH, 1), (-0.5, 1), (3.0, 0)]
    assert "  0    1    1" in [text.get_text() for text in axes.texts]
    with pytest.raises(InputError, match="nowhere"):
        leads.draw([], "title", "mini")


def test_the_stage_writes_the_page_and_the_figure(root, tmp_path):
    page, claims = tmp_path / "README.md", tmp_path / "claims.csv"
    begin, end = readme_tables.MARKERS["status"]
    page.write_text(f"above\n{begin}\nbefore\n{end}\nbelow\n")
    claims.write_text(CLAIMS)
    options = ["status", "--tables", root / "results/mini", "--page", page, "--claims", claims]
    options += ["--figure", tmp_path / "f/leads.png"]
    stage.run(stage.parser().parse_args(list(map(str, options))))
    shown = page.read_text()
    assert shown.startswith(f"above\n{begin}\n")
    assert shown.endswith(f"{end}\nbelow\n")
    assert "| 4 | GLUE | computed |" in shown
    assert "before" not in shown
    assert (tmp_path / "f/leads.png").read_bytes().startswith(b"\x89PNG")
    claims.unlink()
    with pytest.raises(InputError, match="make results/claims"):
        stage.run(stage.parser().parse_args(list(map(str, options))))
    with pytest.raises(InputError, match="0 places"):
        readme_tables.replaced("nothing", "status", "new\n")
