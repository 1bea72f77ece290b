"""The report: one page that holds every table, its figures and where each cell comes from."""

import io
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import small
from report_case import PLAN, RUN, fill_root, table3, write
from table_runs import OF_RUNS, hits, loaded, scale, write_arrays, write_run
from visible_text import offline, parsed, visible

from flexround.errors import SettingsError
from flexround.results import cells, frames, grid, published_results, table_csv
from flexround.results.cells import Scope
from flexround.results.claims import verdicts
from flexround.results.paper_numbers import DECIMALS
from flexround.results.render import origins, overview, pictures, report_page, words
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.plan import Plan
from flexround.settings.schema import Hyper, Recipe
from flexround.tools import report


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    fill_root(root)
    return root


@pytest.fixture(scope="module")
def html(root: Path) -> str:
    return report_page.render(root, PLAN)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project without results, as it is cloned."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "results/reference", root / "results/reference")
    return root


@pytest.fixture(scope="module")
def cloned(clone: Path) -> str:
    return report_page.render(clone, PLAN)


def test_the_tool_writes_the_same_page_and_takes_an_own_file(root, html, tmp_path):
    arguments = ["--root", str(root), "--out", str(tmp_path / "new/report.html")]
    report.run(report.parser().parse_args(arguments))
    assert (tmp_path / "new/report.html").read_text() == html
    assert str(root) not in html
    with pytest.raises(SettingsError, match=r"gone\.yaml"):
        report.run(report.parser().parse_args([*arguments, "--own", str(tmp_path / "gone.yaml")]))


def test_nothing_is_loaded_and_inner_links_lead_somewhere(html):
    assert offline(html)
    assert not re.search(r"fetch\(|XMLHttpRequest", html)
    ids = [a["id"] for _, a in parsed(html).tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a.get("href", a.get("xlink:href"))[1:] for tag, a in parsed(html).tags if tag == "a"} <= set(ids)


def test_every_cell_links_to_a_sheet_that_names_it(html):
    cells = {a["id"]: a["href"] for tag, a in parsed(html).tags if tag == "a" and a.get("class", "").startswith("cell")}
    assert len(cells) == 9 * 3 * 2 + 5
    for cell, sheet in cells.items():
        text = html[html.index(f'id="{sheet[1:]}"') :].partition("</details>")[0]
        assert f'href="#{cell}"' in text
    assert len(set(cells.values())) == 9 * 3 + 5


def test_a_sheet_holds_what_is_recorded(root):
    found = origins.sections(root, PLAN, RUN, [RUN])
    assert f"{layout.evaluated_dir(RUN)}/metrics.json" in found["To make it again"][0]
    assert found["Recipe"] == {"setting": "Q", "w_bits": 4}
    assert found["Settings and where they come from"][1:] == [["learning rate", "lr", {"v": 0.1, "s1": 2}, "section 9"]]
    blocks = [[visible(str(cell)) for cell in row[:4]] for row in found["Errors of blocks"][1:]]
    assert blocks == [[name, "weights", "", "0.1235"] for name in "ab"]
    assert "--share: 100%" in found["Errors of blocks"][1][3]
    assert found["Machine and commit"] == {"device": "CPU"}
    assert PLAN.gate(RUN) in found["sha256"]
    assert f"{layout.quantized_dir(RUN)}/manifest.json" in found["sha256"]


def test_a_cell_names_the_seeds_it_is_the_median_of(tmp_path):
    lines = ({"table": 1, "row": 1, "group": 1, "best": 0, "n_seeds": n, "scale": "mini"} for n in (2, 0))
    rest = {"task": "t", "checkpoint": "c", "recipe": "r"}
    made = frames.made((line | rest for line in lines), grid.Entry._fields)
    two, none = frames.lines(made, grid.Entry)
    for seed in (10, 0, 2):
        write(tmp_path / layout.evaluated_dir(Run("mini", "t", "c", "r", seed)) / "metrics.json", {})
    assert [run.seed for run in origins.evaluated(two, tmp_path)] == [0, 2]
    assert origins.evaluated(none, tmp_path) == []


def test_settings_say_where_they_are_read(html):
    assert "<dt>read</dt><dd>train.lr</dd>" in html


def test_what_users_wrote_is_escaped(html):
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>bold" not in html
    assert html.count("</script>") == 1


def test_mini_shows_no_difference_and_lists_what_is_not_made(html):
    assert 'class="delta"' not in html
    shown = visible(html)
    assert "Scale mini: own models and data, not the paper's." in shown
    assert "Handwritten digits, " in shown
    assert "FlexRound is better with s1 learned than with s1 fixed." in shown
    assert re.search(r"<td[^>]*>ImageNet</td>\s*<td[^>]*><span class=\"badge not-run\">", html)
    assert "Table 7: " in html[html.index("tables were not run") :]
    assert "Figure 4: not run" in html
    assert "make results/errata.csv" in html


def standing(number: int, *, best: int = 0, **counts: int) -> overview.Standing:
    """Return how a table with so many cells of each status stands, the first ``best`` of which FlexRound wins."""
    facts = {"table": number, "row": 1, "group": 1, "best": 0, "scale": "mini", "method": "FlexRound"}
    states = [status for status, count in counts.items() for _ in range(count)]
    lines = [facts | {"status": status, "metric": f"m{i}", "best": int(i < best)} for i, status in enumerate(states)]
    return overview.Standing(PLAN.params.tables[number], grid.of(frames.made(lines, grid.Entry._fields)))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"reproduced": 3, "close": 1}, "close"),
        ({"reproduced": 3, "close": 1, "off": 1}, "off"),
        ({"off": 1, "missing": 1}, "partial"),
        ({"missing": 2}, "missing"),
        ({"computed": 2, "partial": 1}, "partial"),
    ],
)
def test_a_table_stands_like_its_worst_cell(counts, expected):
    assert standing(3, **counts).status == expected


def test_every_table_of_the_paper_has_a_family():
    found = [overview.family(PLAN.params.tables[number]) for number in range(1, 25)]
    assert (found[0], found[3], found[5], found[6]) == ("ImageNet", "GLUE", "Generation", "LLaMA")
    assert "Other" not in found


def test_jobs_behind_runs_of_which_a_shared_one_counts_once(root):
    full = origins.directories(PLAN, Run("mini", "glue-mrpc", "bert-base", "full-precision", 0))
    assert [origins.stage(directory) for directory in full] == ["data", "fine-tune", "evaluate"]
    tuned = origins.directories(PLAN, Run("mini", "glue-mrpc", "bert-base", "q-flexround-w8a8-tuned", 0))
    candidates = PLAN.params.recipe("q-flexround-w8a8-tuned").select
    assert [origins.stage(directory) for directory in tuned].count("reconstruct") == len(candidates) + 1
    assert tuned[-2:] == [tuned[-1].replace("evaluated", "quantized"), tuned[-1]]
    other = Run("mini", "imagenet", "resnet18-brecq", "q-adaround-w4a4", 0)
    assert origins.seconds_by_stage(root, PLAN, [RUN, RUN])["reconstruct"] == 3.0
    both = origins.seconds_by_stage(root, PLAN, [RUN, other])
    assert both == {"calibrate": 3.5, "reconstruct": 3.0, "evaluate": 4.0}


def test_a_run_that_the_settings_no_longer_know_is_still_shown(root):
    run = Run("mini", "imagenet", "resnet18-brecq", "gone", 0)
    write(root / layout.evaluated_dir(run) / "metrics.json", {"metrics": {"top1": 95.39999999999999}, "seconds": 1.0})
    found = origins.sections(root, PLAN, run, [run])
    assert found["To make it again"][0].endswith("--config scale=mini own=FILE")


def test_a_fresh_clone_shows_what_is_published(clone, cloned):
    assert "24 of 24 tables were not computed here" in visible(cloned)
    assert cloned.count("Published with this repository, not computed here.") == 24 + 1, "tables and the ranking"
    assert visible(cloned).count("◇ published") == 2 * 24 + 1
    assert visible(cloned).count("● computed") == 1, "in the legend alone"
    assert "Published with this repository, not judged here." in visible(cloned)


def test_computed_comes_before_published_of_the_same_scale(clone, tmp_path):
    write(tmp_path / "results/mini/table3.csv", "")
    assert published_results.find(tmp_path, PLAN.scale, "table3.csv") == (tmp_path / "results/mini/table3.csv", False)
    assert published_results.find(clone, PLAN.scale, "table3.csv").published
    assert not published_results.find(clone, PLAN.scale, "table99.csv").published
    assert not published_results.find(clone, loaded("paper").scale, "table3.csv").published


def test_the_page_opens_with_what_was_found(clone, cloned):
    counts = verdicts.total(verdicts.load(clone / "results/reference/claims.csv", PLAN.scale))
    text = visible(cloned)
    holds, fails, noise = (counts[name] for name in ("holds", "does not hold", "inside the noise"))
    sentence = f"{holds} hold, {fails} do not, and {noise} are inside the noise."
    assert sentence in text
    judged = verdicts.against_adaround(verdicts.load(clone / "results/reference/claims.csv", PLAN.scale))
    of = Counter(line.outcome.partition(" ")[0] for line in judged)
    tally = f"Of {len(judged)} comparisons with AdaRound, FlexRound wins {of['better']} and loses {of['worse']};"
    assert text.index(sentence) < text.index(tally) < text.index("Table 1")


def test_findings_of_a_comparable_scale_count_tolerated_cells():
    counts = {"holds": 1, "does not hold": 0, "inside the noise": 2, "not run": 5}
    assert overview.sentences(counts, [], [standing(3, reproduced=3, off=1, best=2), standing(4, close=2)]) == [
        "Of 3 comparisons that test the paper's claims, 1 hold, 0 do not, and 2 are inside the noise.",
        "5 more were not run.",
        "Of the 2 cells that beat every other method by more than the noise, 2 are FlexRound's.",
        "3 of 6 cells are within the tolerance of the paper's number.",
    ]
    none = dict.fromkeys(counts, 0)
    assert overview.sentences(none, [], [standing(3, computed=2)]) == [overview.NO_LEAD]


def decimals(text: str) -> int:
    """Return the most decimals of a number in a text."""
    return max((len(found) for found in re.findall(r"\d\.(\d+)(?![\d.])", text)), default=0)


@pytest.mark.parametrize("page", ["html", "cloned"])
def test_no_number_has_more_digits_than_its_metric(page, request):
    shown = request.getfixturevalue(page)
    values = re.sub(r'<section id="(table1[34]|sheets)".*?</section>', "", shown, flags=re.DOTALL)
    assert decimals(visible(values)) <= 4, "p has most"


def section(page: str, plot: str) -> str:
    return page[page.index(f'<section id="plot-{plot}">') :].partition("</section>")[0]


def numbers(page: str, plot: str, choice: int = 0) -> list[list[str]]:
    """Return the table below a picture of the page."""
    table = section(page, plot).split('<div class="picture"')[1:][choice].partition('<table class="list sortable">')[2]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [[visible(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def labels(page: str, plot: str) -> list[str]:
    """Return the pictures of a plot that a reader can choose."""
    return re.findall(r"<option[^>]*>(.*?)</option>", section(page, plot))


def test_plots_tell_what_the_tables_have(clone, cloned):
    assert labels(cloned, "bits")[0] == "Table 2"
    found = numbers(cloned, "bits")
    assert found[0] == ["column", "method", "2/32", "3/32", "4/32"]
    line = next(row for row in found if row[:2] == ["ResNet-18, top-1", "B + FlexRound (Ours)"])
    table = (clone / "results/reference/table2.csv").read_text().splitlines()
    assert any(row.startswith("2,") and f"4/32,ResNet-18,top1,{line[4]}," in row for row in table)
    assert len(numbers(cloned, "leads", labels(cloned, "leads").index("table 2"))) == 1 + 18
    assert labels(cloned, "sizes") == ["the paper&#39;s"]
    assert labels(cloned, "seeds") == []
    for plot in ("leads", "bits", "sizes"):
        for choice in range(len(labels(cloned, plot))):
            header, *rows = numbers(cloned, plot, choice)
            told = [cell for row in rows for title, cell in zip(header, row, strict=True) if title != "p"]
            assert decimals(" ".join(told)) <= DECIMALS
    linked = set(re.findall(r'xlink:href="#(cell-[\d.]+)"', cloned))
    assert len(linked) > 300
    assert linked <= set(re.findall(r'id="(cell-[\d.]+)"', cloned)), "every point is a link to a cell"


def test_seeds_and_sizes_are_those_of_the_runs(tmp_path):
    spec = PLAN.params.figures.sample_size
    sheets = pictures.Sheets([])

    def evaluate(recipe: str, seed: int, right: int) -> None:
        run = Run("mini", spec.task, spec.checkpoint, recipe, seed)
        write_run(tmp_path / "results", run, hits(right), ["top1"], seconds=1.0)

    def drawn() -> list[pictures.Picture]:
        return pictures.of_sizes(PLAN, pictures.sizes(PLAN, tmp_path), sheets).pictures

    evaluate("b-flexround-w4-n64", 0, 800)
    evaluate("b-flexround-w4-n64", 1, 840)
    assert [picture.label for picture in drawn()] == ["the paper's"], "one size is no line"
    evaluate("b-flexround-w4", 0, 850)
    assert [list(map(visible, row)) for row in drawn()[0].rows] == [
        ["computed here", "B + FlexRound", "82.00 ± 2.83", "85.00"]
    ]
    (spread,) = pictures.of_seeds([], pictures.sizes(PLAN, tmp_path), tmp_path, sheets).pictures
    assert list(map(visible, spread.rows[0])) == ["B + FlexRound, 64 samples", "82.00", "80.00", "84.00"]


def test_each_question_set_shows_its_own_seeds(tmp_path):
    """Seven metrics of table 7 are called ``acc`` there."""
    table, recipe = OF_RUNS["table07"], "q-flexround-w8a8"
    right = {}
    for index, cell in enumerate(cell for cell in table.cells() if cell.row.recipe == recipe):
        right.setdefault((cell.task, cell.checkpoint), {})[cell.metrics[0]] = 800 - 10 * index
    for network, of in right.items():
        for seed in range(2):
            scores = {metric: hits(count + 4 * seed) for metric, count in of.items()}
            write_arrays(tmp_path / "results", Run("mini", *network, recipe, seed), scores, seconds=1.0)
    found = cells.collect(table, Scope("mini", PLAN.params.recipes.recipes, 2, tmp_path / "results"))
    text = frames.text(table_csv.of_cells(found, {}, table, scale()))
    made, of_an_own_file = grid.load(io.StringIO(text)), grid.load(io.StringIO(text.replace(recipe, "q-own-w8a8")))
    assert not pictures.of_seeds([overview.Standing(table, of_an_own_file)], {}, tmp_path, pictures.Sheets([])).pictures
    (spread,) = pictures.of_seeds([overview.Standing(table, made)], {}, tmp_path, pictures.Sheets([])).pictures
    medians = [entry.value for entry in made.entries if entry.value]
    assert len(set(medians)) == len(medians) > 7
    assert [str(row[1]) for row in spread.rows] == medians


def test_keys_are_words_in_tables(cloned):
    assert {*Hyper.model_fields, *Recipe.model_fields} <= words.WORDS.keys()
    assert words.of("label_smoothing") == "label smoothing"
    text = visible(cloned)
    assert "matched/mismatched" in text
    assert not re.search(r"\b(top1|top5|acc_matched|ppl)\b", text)


def test_differences_have_marks_and_own_rows_their_command(tmp_path):
    path = tmp_path / "results/mini/table3.csv"
    plan = Plan(PLAN.params._replace(scale=PLAN.scale.model_copy(update={"comparable": True})))
    text = table3(tmp_path).replace(",,computed,", ",-9.00,off,")
    last = text.splitlines()[-2:]
    own = "\n".join(
        line.replace("Q + FlexRound (Ours)", "Mine </script>").replace(",q-flexround", ",mine") for line in last
    )
    own = re.sub(r",1,[\d.]+,-9.00,off,", ",1,,,computed,", own.replace("3,9,", "3,10,"))  # without published numbers
    write(path, f"{text}{own}\n")
    page = report_page.render(tmp_path, plan, "my files/own.yaml")
    assert page.count('<span class="delta"><span aria-hidden="true">✗</span>\n -9.00</span>') == 9 * 3 * 2
    assert '<span class="badge off">' in page
    assert page.count("</script>") == 1
    assert "()" not in visible(page)
    sheets = dict(re.findall(r"<summary>(\S+)</summary>(.*?)</details>", page, re.DOTALL))
    making = [visible(text) for name, text in sheets.items() if "/mine" in name]
    assert making
    assert all("--config scale=mini 'own=my files/own.yaml'" in text for text in making)


def test_empty_tables_are_folded_and_impossible_ones_left_out(tmp_path):
    empty = re.sub(r",\d+\.\d\d,,1,1000,[\d.]*,1,(.*?),computed,", r",,,0,,,,\1,missing,", table3(tmp_path / "runs"))
    write(tmp_path / "results/mini/table3.csv", empty)
    page = report_page.render(tmp_path, PLAN)
    assert page.count('<span class="badge not-run">') == len(PLAN.params.tables) - 1
    assert overview.NOTHING in visible(page)
    assert "<details><summary>Top-1/Top-5 accuracy (%) on ImageNet when both weights and activations" in page
    assert "23 tables were not run" in visible(page)
    own = Plan(small.scale_without_tables(tmp_path / "own"))
    write(tmp_path / ".jobs/squeezenet/scale", "../mine.yaml")
    for seed in range(6):
        run = Run("squeezenet", "digits", "squeezenet", "b-flexround-w4", seed)
        write_run(tmp_path / "results", run, hits(900), ["top1"])
    text = visible(report_page.render(tmp_path, own))
    assert overview.NOTHING not in text
    assert "make results/ranking.csv SCALE=../mine.yaml" in text
    assert "in no table of this page: squeezenet/evaluated/digits/squeezenet/b-flexround-w4/seed0, " in text
    assert "seed4, 1 more." in text
    assert "24 tables show networks or tasks that this scale lacks." in text
    assert "make results/table2.csv" not in text
