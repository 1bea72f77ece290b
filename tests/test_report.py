"""The report: one page that holds every table, its figures and the origin of each cell."""

import re
from collections import Counter
from pathlib import Path

import pytest
import small
from report_case import PLAN, RUN, fill_root, published, write
from table_runs import hits, loaded, write_run
from visible_text import offline, parsed, visible

from flexround.results import frames, grid, published_results
from flexround.results.claims import verdicts
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


def test_the_tool_writes_the_same_page(root, html, tmp_path):
    report.run(report.parser().parse_args(["--root", str(root), "--out", str(tmp_path / "new/report.html")]))
    assert (tmp_path / "new/report.html").read_text() == html
    assert str(root) not in html


def test_nothing_is_loaded_and_inner_links_lead_somewhere(html):
    assert offline(html)
    ids = [a["id"] for _, a in parsed(html).tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {a["href"] for tag, a in parsed(html).tags if tag == "a"}
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert {"mini/table3.csv", "mini/table3.tex"} <= links


def test_every_cell_links_to_a_sheet_that_names_it(html):
    cells = {a["id"]: a["href"] for tag, a in parsed(html).tags if tag == "a" and a.get("class", "").startswith("cell")}
    assert len(cells) == 9 * 3 * 2 + 5
    for cell, sheet in cells.items():
        text = html[html.index(f'id="{sheet[1:]}"') :].partition("</details>")[0]
        assert f'href="#{cell}"' in text
    assert len(set(cells.values())) == 9 * 3 + 5
    assert "<dt>read</dt><dd>train.lr</dd>" in html, "the setting of a cell of table 13"


def test_a_sheet_holds_what_is_recorded(root):
    found = origins.sections(root, PLAN, RUN, [RUN])
    assert f"{layout.evaluated_dir(RUN)}/metrics.json" in found["To make it again"][0]
    assert found["Recipe"] == {"setting": "Q", "w_bits": 4}
    assert ["learning rate", "lr", {"v": 0.1, "s1": 2}, "section 9"] in found["Settings and where they come from"]
    assert [row[:4] for row in found["Errors of blocks"][1:]] == [[name, "weights", "", 0.1234567] for name in "ab"]
    assert found["Machine and commit"] == {"device": "CPU"}
    assert found["sha256"].keys() > {PLAN.gate(RUN), f"{layout.quantized_dir(RUN)}/manifest.json"}
    gone = Run("mini", "imagenet", "resnet18-brecq", "gone", 0)
    write(root / layout.evaluated_dir(gone) / "metrics.json", {})
    assert origins.sections(root, PLAN, gone, [gone])["To make it again"][0].endswith("--config scale=mini own=FILE")


def test_a_choice_depends_on_the_jobs_of_its_candidates():
    found = origins.directories(PLAN, Run("mini", "glue-mrpc", "bert-base", "q-flexround-w8a8-tuned", 0))
    candidates = PLAN.params.recipe("q-flexround-w8a8-tuned").select
    assert sum("/quantized/" in directory for directory in found) == len(candidates) + 1


def test_a_cell_names_the_seeds_of_its_median(tmp_path):
    lines = ({"table": 1, "row": 1, "group": 1, "best": 0, "n_seeds": n, "scale": "mini"} for n in (2, 0))
    rest = {"task": "t", "checkpoint": "c", "recipe": "r"}
    two, none = frames.lines(frames.made((line | rest for line in lines), grid.Entry._fields), grid.Entry)
    for seed in (10, 0, 2):
        write(tmp_path / layout.evaluated_dir(Run("mini", "t", "c", "r", seed)) / "metrics.json", {})
    assert [run.seed for run in origins.evaluated(two, tmp_path)] == [0, 2]
    assert origins.evaluated(none, tmp_path) == []


def test_mini_shows_no_difference_and_lists_what_is_not_made(html):
    assert 'class="delta"' not in html
    shown = visible(html)
    assert "Scale mini: own models and data, not the paper's." in shown
    assert "Handwritten digits, " in shown
    assert re.search(r"<td[^>]*>ImageNet</td>\s*<td[^>]*><span class=\"badge not-run\">", html)
    for missing in ("results/table7.csv", "results/figure4.pdf", "results/errata.csv"):
        assert f"make {missing} SCALE=mini" in shown
    assert "&lt;b&gt;bold&lt;/b&gt;" in html, "words of users are escaped"


def standing(number: int, *, best: int = 0, **counts: int) -> overview.Standing:
    """Return the status of a table with so many cells of each status, of which FlexRound wins the first ``best``."""
    facts = {"table": number, "row": 1, "group": 1, "best": 0, "scale": "mini", "method": "FlexRound"}
    states = [status for status, count in counts.items() for _ in range(count)]
    lines = [facts | {"status": status, "metric": f"m{i}", "best": int(i < best)} for i, status in enumerate(states)]
    return overview.Standing(PLAN.params.tables[number], grid.of(frames.made(lines, grid.Entry._fields)))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"reproduced": 3, "close": 1, "off": 1}, "off"),
        ({"off": 1, "missing": 1}, "partial"),
        ({"missing": 2}, "missing"),
        ({"computed": 2, "partial": 1}, "partial"),
    ],
)
def test_a_table_stands_like_its_worst_cell(counts, expected):
    assert standing(3, **counts).status == expected


def test_findings_of_a_comparable_scale_count_tolerated_cells():
    counts = {"holds": 1, "does not hold": 0, "inside the noise": 2, "not run": 5}
    assert overview.sentences(counts, [], [standing(3, reproduced=3, off=1, best=2), standing(4, close=2)]) == [
        "Of 3 comparisons that test the paper's claims, 1 hold, 0 do not, and 2 are inside the noise.",
        "5 more were not run.",
        "Of the 2 cells that beat every other method by more than the noise, 2 are FlexRound's.",
        "3 of 6 cells are within the tolerance of the paper's number.",
    ]


def test_a_fresh_clone_shows_published_results_and_findings():
    page = published("mini")
    text = visible(page)
    assert "24 of 24 tables were not computed here" in text
    assert page.count("Standard errors: up to ") == 20
    claims = verdicts.load(ROOT / "results/reference/claims.csv", PLAN.scale)
    holds, fails, noise = (verdicts.total(claims)[name] for name in ("holds", "does not hold", "inside the noise"))
    sentence = f"{holds} hold, {fails} do not, and {noise} are inside the noise."
    lines = verdicts.against_adaround(claims)
    of = Counter(line.outcome.partition(" ")[0] for line in lines)
    tally = f"Of {len(lines)} comparisons with AdaRound, FlexRound wins {of['better']} and loses {of['worse']};"
    assert text.index(sentence) < text.index(tally) < text.index("Table 1")
    values = re.sub(r'<section id="(table1[34]|sheets)".*?</section>', "", page, flags=re.DOTALL)
    assert not re.search(r"\d\.\d{5}", visible(values)), "p has the most decimals, four"
    assert {*Hyper.model_fields, *Recipe.model_fields} <= words.WORDS.keys()
    assert not re.search(r"\b(top1|top5|acc_matched|ppl)\b", visible(values)), "keys are words"


def test_computed_comes_before_published_of_the_same_scale(tmp_path):
    write(tmp_path / "results/mini/table3.csv", "")
    assert published_results.find(tmp_path, PLAN.scale, "table3.csv") == (tmp_path / "results/mini/table3.csv", False)
    clone = tmp_path / "clone"
    (clone / "results").mkdir(parents=True)
    (clone / "results/reference").symlink_to(ROOT / "results/reference")
    for scale, name, found in (
        ("mini", "table3.csv", True),
        ("mini", "table99.csv", False),
        ("paper", "table3.csv", False),
    ):
        assert published_results.find(clone, loaded(scale).scale, name)[1] == found


def numbers(page: str, plot: str) -> list[list[str]]:
    """Return the table below the first picture of a plot."""
    section = page[page.index(f'<section id="plot-{plot}">') :].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.split('<div class="picture"')[1], re.DOTALL)
    return [[visible(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def test_plots_tell_what_the_tables_have():
    header, *rows = numbers(published("mini"), "bits")
    assert header == ["column", "method", "2/32", "3/32", "4/32"]
    line = next(row for row in rows if row[:2] == ["ResNet-18, top-1", "B + FlexRound (Ours)"])
    table = (ROOT / "results/reference/table2.csv").read_text()
    assert re.search(rf"^2,.*FlexRound \(Ours\),4/32,ResNet-18,top1,{line[4]},", table, re.MULTILINE)
    counted = [sum(map(int, row[1:])) for row in numbers(published("mini"), "leads")[1:]]
    lines = verdicts.against_adaround(verdicts.load(ROOT / "results/reference/claims.csv", PLAN.scale))
    assert counted == [n for _, n in sorted(Counter(line.place for line in lines).items(), key=lambda of: place(of[0]))]
    assert len(numbers(published("mini"), "sizes")) == 1 + 2


def place(name: str) -> tuple[bool, int]:
    return name.startswith("figure"), int(name.split()[1])


def test_a_line_of_sizes_needs_two_of_them(tmp_path):
    spec = PLAN.params.figures.sample_size
    for recipe, seed, right in (("flexround-w4-n64", 0, 800), ("flexround-w4-n64", 1, 840), ("flexround-w4", 0, 850)):
        if right == 850:
            assert [each.label for each in pictures.of_sizes(PLAN, tmp_path).pictures] == ["the paper's"]
        run = Run("mini", spec.task, spec.checkpoint, f"b-{recipe}", seed)
        write_run(tmp_path / "results", run, hits(right), ["top1"])
    ours = pictures.of_sizes(PLAN, tmp_path).pictures[0]
    assert ours.rows == [["computed here", "B + FlexRound", "82.00 ± 2.83", "85.00"]]


def test_differences_have_marks_and_own_rows_their_command(root, tmp_path):
    plan = Plan(PLAN.params._replace(scale=PLAN.scale.model_copy(update={"comparable": True})))
    text = (root / "results/mini/table3.csv").read_text().replace(",,computed,", ",-9.00,off,")
    own = "\n".join(text.splitlines()[-2:]).replace("3,9,", "3,10,").replace(",q-flexround", ",mine")
    own = own.replace("Q + FlexRound (Ours)", "Mine </script>")
    write(tmp_path / "results/mini/table3.csv", f"{text}{own}\n")
    page = report_page.render(tmp_path, plan, "my files/own.yaml")
    assert page.count('<span class="delta"><span aria-hidden="true">✗</span>\n -9.00</span>') == 9 * 3 * 2 + 2
    assert page.count("</script>") == 1
    sheets = dict(re.findall(r"<summary>(\S+)</summary>(.*?)</details>", page, re.DOTALL))
    (made,) = [visible(text) for name, text in sheets.items() if "/mine" in name]
    assert "--config scale=mini 'own=my files/own.yaml'" in made


def test_empty_tables_are_folded_and_own_scales_list_their_runs(root, tmp_path):
    computed = (root / "results/mini/table3.csv").read_text()
    empty = re.sub(r",\d+\.\d\d,,1,1000,[\d.]*,1,(.*?),computed,", r",,,0,,,,\1,missing,", computed)
    write(tmp_path / "results/mini/table3.csv", empty)
    page = report_page.render(tmp_path, PLAN)
    assert overview.NOTHING in visible(page)
    assert "<details><summary>Top-1/Top-5 accuracy (%) on ImageNet when both weights and activations" in page
    assert "23 tables were not run" in visible(page)
    own = Plan(small.scale_without_tables(tmp_path / "own"))
    write(tmp_path / ".jobs/squeezenet/scale", "../mine.yaml")
    for seed in range(6):
        run = Run("squeezenet", "digits", "squeezenet", "b-flexround-w4", seed)
        write_run(tmp_path / "results", run, hits(900), ["top1"])
    text = visible(report_page.render(tmp_path, own))
    assert "make results/ranking.csv SCALE=../mine.yaml" in text
    assert "in no table of this page: squeezenet/evaluated/digits/squeezenet/b-flexround-w4/seed0, " in text
    assert text.count("This scale lacks its networks or tasks.") == 24
