"""The document of all tables; the tables, figures and counts of the README and of docs/results.md."""

import csv
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from table_runs import OF_RUNS, Q_W8A8, claims_csv, fill, loaded, settings_csv

from flexround.errors import InputError
from flexround.results import evaluated, frames, grid, ranking
from flexround.results.claims import verdicts
from flexround.results.claims.verdicts import EQUAL, FAILS, HOLDS, NOISE, UNDECIDED, WORSE
from flexround.results.render import budgets, document, figure_style, leads, terminal
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.tools import archive, reference
from flexround.tools import readme as stage

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "results/reference"
PLAN = Plan(loaded("mini"))
NAMES = [table.name for table in PLAN.params.tables.values()] + [f"figure{number}" for number in PLAN.figures]
ITEMS = [item for part in document.parts(NAMES) for item in part.items]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables 4 and 14, and a figure."""
    root = tmp_path_factory.mktemp("work")
    mini = root / "results/mini"
    mini.mkdir(parents=True)
    for number, text in ((4, fill(root / "runs", OF_RUNS["table04"], Q_W8A8)), (14, settings_csv(14, PLAN.params))):
        (mini / f"table{number}.csv").write_text(text)
    figure_style.save(figure_style.new_figure(2, 1, "dot", "mini"), mini / "figure3.pdf")
    return root


def test_the_document_is_in_order_and_names_what_is_missing(root):
    assert sorted(ITEMS) == sorted(NAMES)
    tables = [item for item in ITEMS if item.startswith("table")]
    assert tables == sorted(tables, key=lambda name: int(name.removeprefix("table")))
    text = document.source(root, PLAN, "mini")
    first, body = text.split(r"\tableofcontents")
    captions = re.findall(r"\\label\{(tab:[^}]+)\}|\\includegraphics\{(\w+)\}", body)
    assert [next(filter(None, found)) for found in captions] == ["figure3", "tab:glue", "tab:glue-ft"]
    assert "Ablation" not in body, "a part with nothing in it"
    assert r"\setcounter{table}{3}" in body
    assert f"3 of {len(ITEMS)} tables and figures" in first
    assert "Table~3" in first
    assert "Table~4" not in first
    assert "own models and data, not the paper's" in first
    assert str(root) not in text


def test_the_document_shows_published_tables_and_says_so(root, tmp_path):
    (tmp_path / "work/results").mkdir(parents=True)
    (tmp_path / "work/results/mini").symlink_to(root / "results/mini")
    (tmp_path / "work/results/reference").symlink_to(REFERENCE)
    text = document.source(tmp_path / "work", PLAN, "mini")
    tables = re.findall(r"\\caption\{(.*?)\\label\{(tab:[^}]+)\}", text, re.DOTALL)
    assert len(tables) == len(PLAN.params.tables)
    assert all(caption.startswith("Scale mini: ") for caption, _ in tables)
    assert f"{len(tables) - 2} tables were not computed here" in text
    table2 = text[text.index(r"\label{tab:imagenet_w_brecq}") :]
    assert r"92.73 & 99.89 & \color{gray}\scriptsize (70.82/89.67) \\" in table2.replace(r"\bfseries ", "")
    assert r"\item Of 313 comparisons with AdaRound, FlexRound wins 74" in text
    assert [*document.drawn(tmp_path / "work", PLAN)] == ["leads"]
    assert "not computed here" not in document.source(tmp_path / "work", Plan(loaded("paper")), "paper")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX")
def test_the_document_compiles(root, tmp_path):
    (tmp_path / "mini").symlink_to(root / "results/mini")
    (tmp_path / "paper.tex").write_text(document.source(root, PLAN, "mini"))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("part", stage.PAGES)
def test_pages_show_what_is_published(tmp_path, monkeypatch, part):
    monkeypatch.chdir(tmp_path)
    page = Path(stage.PAGES[part])
    Path("docs/figures").mkdir(parents=True)
    Path("results").mkdir()
    Path("results/reference").symlink_to(REFERENCE)
    published = (ROOT / page).read_text()
    page.write_text(stage.replaced(published, part, dict.fromkeys(stage.made(part), "another table\n")))
    stage.LEADS.unlink(missing_ok=True)
    stage.run(stage.parser().parse_args([part]))
    assert page.read_text() == published, f"run: make {part}"
    assert stage.LEADS.exists() == (part == "status")
    with pytest.raises(InputError, match="0 places"):
        stage.replaced("", part, {part: ""})


def test_readme_and_results_say_what_is_published():
    readme, results = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/results.md"))
    mini, real = (
        verdicts.against_adaround(verdicts.load(REFERENCE / name, loaded(scale).scale))
        for scale, name in (("mini", "claims.csv"), ("real", "real-claims.csv"))
    )
    others = [line for line in real if line.place != "real 8"]
    said, of = (Counter(line.outcome.partition(" ")[0].rstrip(",") for line in lines) for lines in (mini, others))
    sentence = (
        f"better than AdaRound in {said['better']} of {len(mini)} comparisons, worse in {said['worse']}, equal in "
        f"{said['equal']} and undecided in {said['undecided']}"
    )
    seeds = {
        table.place: max(int(entry.n_seeds or 0) for entry in frames.load(REFERENCE / f"{table.name}.csv", grid.Entry))
        for table in loaded("real").tables.values()
    }
    once = sum(seeds.get(line.place) == 1 for line in real)
    asked = verdicts.total(verdicts.load(REFERENCE / "real-claims.csv", loaded("real").scale))
    assert sentence in results
    assert (
        f"FlexRound wins {said['better']} of {len(mini)} comparisons and loses {said['worse']}; "
        f"{said['equal']} are equal and {said['undecided']} undecided (p values corrected)"
    ) in readme
    assert (
        f"Of {len(others)} comparisons ({once} with a single seed), FlexRound wins {of['better']} and loses "
        f"{of['worse']}; {of['equal']} are equal within narrow bounds and {of['undecided']} undecided (p values "
        f"corrected for all {sum(asked.values())}; "
    ) in readme
    assert f"makes {sum(asked.values())} comparisons: {len(real)} of FlexRound with AdaRound" in results
    assert f"corrected for all {sum(asked.values())} comparisons that the claims make there" in results
    assert f"[{asked[HOLDS]} hold, {asked[FAILS]} don't, {asked[NOISE]} are inside the noise]" in results
    found = [line.outcome for line in mini if line.metric == "perplexity"]
    assert f"better in {found.count('better')} of {len(found)}, worse in {found.count('worse')} and" in results
    ranked = frames.load(REFERENCE / "ranking.csv", ranking.Line)
    ours, other = (next(each for each in ranked if each.method == name) for name in ("FlexRound", "AdaRound"))
    assert (
        f"[Of {ours.cells} cells](../results/reference/ranking.csv) it leads in {ours.leads} after correction for all "
        f"comparisons, shares the lead in {ours.shares} and loses in {ours.loses}; AdaRound leads in {other.leads} and "
        f"loses in {other.loses}"
    ) in results
    ranked = frames.load(REFERENCE / "real-ranking.csv", ranking.Line)
    ours, other = (next(each for each in ranked if each.method == name) for name in ("FlexRound", "AdaRound"))
    assert (
        f"FlexRound leads in {ours.leads} of {ours.cells} cells, shares the lead in {ours.shares} and loses in "
        f"{ours.loses}; AdaRound leads in {other.leads} of {other.cells} and loses in {other.loses}"
    ) in results
    images = [line for line in real if line.place in ("real 1", "real 2")]
    level = [line.outcome for line in images if line.outcome.startswith((EQUAL, UNDECIDED))]
    bounds = [float(re.search(r"[0-9.]+", outcome)[0]) for outcome in level]
    assert f"equal or undecided in {len(bounds)} of {len(images)} cells of [real1]" in results
    assert f"there at most {max(bounds)} points apart" in results
    assert [line.outcome for line in images if line.outcome not in level] == [WORSE]


def test_results_of_real_follow_from_the_published_scores(tmp_path):
    """Byte for byte: values, spreads, standard errors, tests, claims, ranking, origins and tolerances."""
    plan = Plan(loaded("real"))
    shutil.copytree(REFERENCE, tmp_path / "reference")
    archive.unpack(plan, REFERENCE / "real-evaluated.tar.xz", tmp_path / "others")
    for path in sorted(tmp_path.glob("others/results/real/evaluated/cifar10/*/*/seed2")):  # they come later
        shutil.move(path, tmp_path / path.relative_to(tmp_path / "others"))
    (tmp_path / "reference/real-evaluated.tar.xz").write_bytes(archive.pack(plan, tmp_path / "others"))
    given = ["--scale=real", f"--results={tmp_path}/results", f"--out={tmp_path}/reference"]
    reference.run(reference.parser().parse_args(given))
    names = [path.name for path in REFERENCE.glob("real*") if path.suffix != ".xz"]
    assert len(names) > 10
    for name in names:
        assert (tmp_path / "reference" / name).read_bytes() == (REFERENCE / name).read_bytes(), name
    archive.unpack(plan, tmp_path / "reference/real-evaluated.tar.xz", tmp_path)
    figure, lines = plan.params.figures[9], csv.DictReader((REFERENCE / "real-figure9.csv").read_text().splitlines())
    for (task, checkpoint, recipe), line in zip(figure.runs(), lines, strict=True):
        run = Run("real", task, checkpoint, recipe, 0)
        found = evaluated.read_run(run, tmp_path / "results", [line["metric"]])
        assert f"{found[line['metric']].value:.4f}" == line["value"]


def drawn_budgets(path):
    """Draw the figure of budgets from its published points."""
    points = frames.load(REFERENCE / "real-figure9.csv", budgets.Point)
    figure_style.save(budgets.draw(points, loaded("real").figures[9].title, "real"), path)


def test_the_readme_shows_the_published_budgets(tmp_path):
    drawn_budgets(tmp_path / "budgets.png")
    same = (tmp_path / "budgets.png").read_bytes() == (ROOT / "docs/figures/budgets.png").read_bytes()
    assert same, 'draw it again: drawn_budgets(ROOT / "docs/figures/budgets.png")'


def test_the_readme_shows_what_a_run_prints_at_its_end():
    found = grid.load(ROOT / "results/reference/table3.csv")
    printed = terminal.render(found, PLAN.params.tables[3], PLAN.scale)
    shown = re.search(r"depend on the CPU\):\n\n((?:    .+\n)+)", (ROOT / "README.md").read_text())[1]
    lines = [line.strip() for line in shown.splitlines()]
    assert len(lines) == 4
    assert set(lines) <= set(printed.splitlines()), "copy its last lines into README.md"


CLAIMS = claims_csv("""place,section,column,metric,bits,recipe,other_recipe,criterion,margin,noise,verdict
table 2,,R18,top1,4/32,b-flexround-w4,b-adaround-w4,better,1.50,0.50,holds
table 2,,R18,top1,4/32,b-flexround-w4,b-adaround-w4,better,1.50,0.50,holds
table 2,,R18,top1,4/32,b-flexround-w4,b-adaquant-w4,better,9.00,0.50,holds
table 10,,R18,top1,4/32,q-flexround-w3,q-adaround-w3,better,-0.10,0.20,inside the noise
table 10,,R34,top1,4/32,q-flexround-w4-tuned,q-adaround-w4,better,-0.10,0.20,inside the noise
table 10,,R50,top1,4/32,q-flexround-w4,q-adaround-w4,better,,,not run
table 10,,R50,top5,4/32,q-flexround-w4,q-adaround-w4,better,-1.00,0.00,does not hold
table 10,,R50,top5,4/32,q-flexround-w4,q-adaround-w4,worse by less than 2,-1.00,0.00,holds
""")


def test_leads_are_drawn_in_multiples_of_the_noise(tmp_path):
    (tmp_path / "claims.csv").write_text(CLAIMS)
    found = verdicts.against_adaround(verdicts.load(tmp_path / "claims.csv", PLAN.scale))
    assert [(line.place, leads.multiple(line.margin, line.noise), line.verdict) for line in found] == [
        ("table 2", 3.0, "holds"),
        ("table 10", -0.5, "inside the noise"),
        ("table 10", -leads.REACH, "does not hold"),
    ]
    axes = leads.draw(found, "title", "mini").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Table 2", "Table 10"]
    points = [(x, round(y)) for collection in axes.collections for x, y in collection.get_offsets()]
    assert sorted(points) == [(-leads.REACH, 1), (-0.5, 1), (3.0, 0)]
    assert "  0    1    1" in [text.get_text() for text in axes.texts]
