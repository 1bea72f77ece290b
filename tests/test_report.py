"""The report: one page that holds every table, its figures and where each cell comes from."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_case import PLAN, RUN, fill_root, table3, write
from visible_text import visible

from flexround.results import reference
from flexround.results.render import job_costs, origins, overview, report_claims, report_page, run_facts
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
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
def data(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


class Tags(HTMLParser):
    """Gathers every start tag, and checks that tags are closed in order."""

    EMPTY = ("meta", "link", "input", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def tags(html: str) -> Tags:
    parser = Tags()
    parser.feed(html)
    assert parser.stack == []
    return parser


def test_the_same_results_give_the_same_page(root, html):
    assert report_page.render(root, PLAN) == html
    assert str(root) not in html


def test_the_stage_writes_the_page(root, html, tmp_path):
    report.run(report.parser().parse_args(["--root", str(root), "--out", str(tmp_path / "new/report.html")]))
    assert (tmp_path / "new/report.html").read_text() == html


def test_nothing_is_loaded_from_elsewhere(tags, html):
    addresses = [a[name] for tag, a in tags.found for name in ("src", "href") if name in a]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "@import" not in html
    assert not re.search(r"url\(|fetch\(|XMLHttpRequest", html)


def test_identifiers_are_unique_and_inner_links_lead_somewhere(tags):
    ids = [a["id"] for _, a in tags.found if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for tag, a in tags.found if tag == "a"} <= set(ids)


def test_every_cell_has_a_button_and_its_provenance_resolves(tags, data):
    buttons = [a["id"] for tag, a in tags.found if tag == "button" and a.get("class", "").startswith("cell")]
    cells = {f"cell-{table}.{index}": cell for table, of in data["cells"].items() for index, cell in enumerate(of)}
    assert len(buttons) == 9 * 3 * 2 + 5
    assert set(buttons) == set(cells)
    for values, numbers in cells.values():
        assert len(values) == len(data["columns"])
        assert numbers
        for number in numbers:
            name, sections = data["runs"][number]
            assert name
            assert all(data["sections"][section] for _, section in sections)


def run_sections(data: dict, run: Run) -> dict:
    sections = dict(data["runs"])[str(run)]
    return {title: data["sections"][number] for title, number in sections}


def test_provenance_holds_what_is_recorded(root, data):
    found = run_sections(data, RUN)
    assert found["Run"]["seed"] == 0
    assert f"{layout.evaluated_dir(RUN)}/metrics.json" in found["Run"]["make it again"]
    assert found["Recipe"] == {"setting": "Q", "w_bits": 4}
    assert found["Settings and where they come from"][1:] == [["lr", 0.1, "section 9"]]
    assert [row[:4] for row in found["Blocks"][1:]] == [["a", "weights", None, 0.1235], ["b", "weights", None, 0.1235]]
    assert found["Calibration samples"] == {"samples": 1024, "seed": 0}
    costs = {(row[0], row[1]): row[2:] for row in found["Jobs: seconds, CPU seconds and peak MB"][1:]}
    assert costs["calibrate", layout.calibration_dir("mini", "imagenet", 1024, 0)] == [3.5, 5.0, 90.5]
    assert costs["reconstruct", layout.quantized_dir(RUN)] == [3.0, None, 700.0]
    assert costs["evaluate", layout.evaluated_dir(RUN)] == [2.0, None, None]
    assert found["Gate"] == {"top1": 99.0}
    assert PLAN.gate(RUN) in found["sha256 of what is recorded"]
    assert found["Versions of the evaluation"]["packages"] == {"torch": "2"}
    assert f"{layout.quantized_dir(RUN)}/manifest.json" in found["sha256 of what is recorded"]
    assert [facts for title, facts in found.items() if title.startswith("End of logs")] == [
        "block a\nblock </script> b"
    ]


def test_a_cell_names_the_seeds_it_is_the_median_of(tmp_path):
    entry = {"scale": "mini", "task": "t", "checkpoint": "c", "recipe": "r"}
    for seed in (10, 0, 2):
        write(tmp_path / layout.evaluated_dir(Run("mini", "t", "c", "r", seed)) / "metrics.json", {})
    assert [run.seed for run in origins.evaluated(entry | {"n_seeds": "2"}, tmp_path)] == [0, 2]
    assert origins.evaluated(entry | {"n_seeds": "0"}, tmp_path) == []


def test_a_run_takes_few_bytes_so_that_a_thousand_fit(data):
    assert len(json.dumps(run_sections(data, RUN))) < 6000


def test_equal_sections_are_there_once(data):
    texts = [json.dumps(section, sort_keys=True) for section in data["sections"]]
    assert len(texts) == len(set(texts))
    assert len(data["runs"]) == 9 * 3 + 5


def test_a_setting_says_where_it_is_read(data):
    _, numbers = data["cells"]["13"][0]
    _, [[_, section]] = data["runs"][numbers[0]]
    assert data["sections"][section]["read"] == "train.lr"


def test_what_users_wrote_is_escaped(html):
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>bold" not in html
    assert html.count("</script>") == 2


def test_claims_are_counted_claim_by_claim(root):
    judged = report_claims.read(root / "results/mini/claims.csv")
    assert judged[1] == report_claims.Judged(
        name="s1-learnable",
        text="FlexRound is better with s1 learned than with s1 fixed.",
        where="section 4.1",
        counts={"not run": 1, "holds": 1},
        header=["verdict", "margin"],
        lines=[["not run", ""], ["holds", "2.00"]],
    )
    assert report_claims.total(judged) == {"holds": 2, "inside the noise": 0, "does not hold": 0, "not run": 1}


def test_what_is_not_made_is_listed_as_not_run(html):
    assert re.search(r"<td[^>]*>ImageNet</td>\s*<td[^>]*><span class=\"badge not-run\">", html)
    assert "Table 7: " in html[html.index('id="not-run"') :]
    assert "Figure 4: not run" in html
    assert "make results/errata.csv" in html


def test_an_empty_directory_gives_a_page_too(tmp_path):
    text = report_page.render(tmp_path, PLAN)
    assert text.count('<span class="badge not-run">') == len(PLAN.params.tables)


def test_a_scale_of_its_own_shows_no_difference(html):
    assert 'class="delta"' not in html
    shown = visible(html)
    assert "Scale: mini, with its own models and data instead of the paper's; not the paper's numbers." in shown
    assert "numbers. Handwritten digits, " in shown


def test_a_comparable_scale_shows_differences_with_marks(tmp_path):
    plan = Plan(PLAN.params._replace(scale=PLAN.scale.model_copy(update={"comparable": True})))
    write(tmp_path / "results/mini/table3.csv", table3(tmp_path).replace(",,computed,", ",-9.00,off,"))
    shown = report_page.render(tmp_path, plan)
    assert shown.count('<span class="delta"><span aria-hidden="true">✗</span>\n -9.00</span>') == 9 * 3 * 2
    assert '<span class="badge off">' in shown


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"reproduced": 3}, "reproduced"),
        ({"reproduced": 3, "close": 1}, "close"),
        ({"reproduced": 3, "close": 1, "off": 1}, "off"),
        ({"off": 1, "missing": 1}, "partial"),
        ({"missing": 2}, "missing"),
        ({"computed": 2, "partial": 1}, "partial"),
        ({"computed": 2}, "computed"),
    ],
)
def test_a_table_stands_like_its_worst_cell(counts, expected):
    assert overview.status(overview.Counter(counts)) == expected


def test_every_table_of_the_paper_has_a_family():
    found = {number: overview.family(PLAN.params.tables[number]) for number in range(1, 25)}
    assert [number for number, name in found.items() if name == "ImageNet"] == [1, 2, 3, 8, 9, 10, 11]
    assert [number for number, name in found.items() if name == "LLaMA"] == [7, 19, 20, 21, 22, 23, 24]
    assert [number for number, name in found.items() if name == "GLUE"] == [4, 14, 15, 16]
    assert found[6] == "Generation"
    assert "Other" not in found.values()


def test_jobs_behind_a_run():
    full = job_costs.directories(PLAN, Run("mini", "glue-mrpc", "bert-base", "full-precision", 0))
    assert [job_costs.stage(directory) for directory in full] == ["data", "fine-tune", "evaluate"]
    tuned = job_costs.directories(PLAN, Run("mini", "glue-mrpc", "bert-base", "q-flexround-w8a8-tuned", 0))
    candidates = PLAN.params.recipe("q-flexround-w8a8-tuned").select
    assert [job_costs.stage(directory) for directory in tuned].count("reconstruct") == len(candidates) + 1
    assert tuned[-2:] == [tuned[-1].replace("evaluated", "quantized"), tuned[-1]]


def test_a_shared_job_counts_once(root):
    other = Run("mini", "imagenet", "resnet18-brecq", "q-adaround-w4a4", 0)
    assert job_costs.seconds_by_stage(root, PLAN, [RUN, RUN])["reconstruct"] == 3.0
    both = job_costs.seconds_by_stage(root, PLAN, [RUN, other])
    assert both == {"calibrate": 3.5, "reconstruct": 3.0, "evaluate": 4.0}


def test_a_run_that_the_settings_no_longer_know_is_still_shown(root):
    run = Run("mini", "imagenet", "resnet18-brecq", "gone", 0)
    write(root / layout.evaluated_dir(run) / "metrics.json", {"metrics": {"top1": 95.39999999999999}, "seconds": 1.0})
    assert dict(run_facts.sections(root, PLAN, run))["Result"] == {"metrics": {"top1": 95.4}}


def test_a_fresh_clone_shows_what_is_published(tmp_path):
    plan = Plan(load_params("mini"))
    shutil.copytree(ROOT / "results/reference", tmp_path / "results/reference")
    page = report_page.render(tmp_path, plan)
    assert "24 of 24 tables were not computed here" in visible(page)
    assert page.count("Published with this repository, not computed here.") == 24
    assert "Published with this repository, not judged here." in visible(page)
    real = report_page.render(tmp_path, Plan(load_params("paper")))
    assert "not computed here" not in real, "mini's numbers are not those of another scale"


def test_what_was_computed_comes_before_what_is_published(tmp_path):
    scale = load_params("mini").scale
    shutil.copytree(ROOT / "results/reference", tmp_path / "results/reference")
    assert reference.find(tmp_path, scale, "table3.csv").published
    (tmp_path / "results/mini").mkdir()
    (tmp_path / "results/mini/table3.csv").touch()
    assert reference.find(tmp_path, scale, "table3.csv") == (tmp_path / "results/mini/table3.csv", False)
    assert not reference.find(tmp_path, scale, "table99.csv").published
