"""The ranking of roundings: what is a cell, what leads, shares and loses, and what is left out."""

import contextlib
import dataclasses
import shutil
from argparse import Namespace
from pathlib import Path

from table_runs import OF_RUNS, Q_W8A8, TABLE, complete, fill, hits, loaded, scope, write, write_arrays

from flexround.jobs import resolve
from flexround.jobs import tables as job
from flexround.results import cells, frames, ranking
from flexround.settings import user_rows
from flexround.settings.layout import Run
from flexround.settings.plan import Plan
from flexround.stages import show

TRIO = ("weak", "strong", "third")
ENTRANTS = {f"imagenet/net/{recipe}": (recipe.title(), "B W4", "the cell") for recipe in TRIO}


def outcomes(root: Path, seeds: int = 1) -> dict[str, str]:
    """Return how the methods of the made-up table stand, given its runs."""
    (only,) = ranking.judge(ranking.contests(cells.collect(TABLE, scope(root, seeds)), ENTRANTS))
    return only


def test_the_best_by_more_than_the_noise_leads_and_others_lose(tmp_path: Path) -> None:
    complete(tmp_path)  # strong gets 40 of 1000 more than weak; third is far behind
    assert outcomes(tmp_path) == {"Weak": "loses", "Strong": "leads", "Third": "loses"}


def test_unbeaten_methods_share_the_lead_once_p_is_adjusted(tmp_path: Path) -> None:
    for recipe, count in zip(TRIO, (700, 706, 703), strict=True):  # p: 0.0313, 0.25 and 0.25
        write(tmp_path, recipe, hits(count))
    found = cells.collect(TABLE, scope(tmp_path))
    pair = ranking.contests(found, {key: ENTRANTS[key] for key in list(ENTRANTS)[:2]})
    assert ranking.judge(pair) == [{"Weak": "loses", "Strong": "leads"}], "one pair needs no adjustment"
    assert outcomes(tmp_path) == dict.fromkeys(("Weak", "Strong", "Third"), "shares")


def test_a_lead_smaller_than_what_a_table_prints_counts(tmp_path: Path) -> None:
    for recipe, more in zip(TRIO, (0, 16, 0), strict=True):
        write(tmp_path, recipe, hits(200_000 + more, 400_000))
    medians = {cell.median for cell in cells.collect(TABLE, scope(tmp_path)) if cell.complete}
    assert len(medians) == 2
    assert {round(median, 2) for median in medians} == {50}
    assert outcomes(tmp_path) == {"Weak": "loses", "Strong": "leads", "Third": "loses"}


def test_the_lower_perplexity_leads(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        fill(Path("results"), OF_RUNS["table05"], Q_W8A8)
        show.ranking(Namespace(job=Path(resolve.job(Plan(loaded("mini")), "ranking").file)))
        lines = frames.load(Path("results/mini/ranking.csv"), ranking.Line)
    (first, last) = [line for line in lines if line.group == "Language modelling"]
    assert (first.method, first.leads, last.method, last.loses) == ("AdaRound", 12, "FlexRound", 12)


def test_a_missing_seed_or_missing_scores_leave_a_cell_out(tmp_path: Path) -> None:
    complete(tmp_path)
    left_out = dict.fromkeys(("Weak", "Strong", "Third"), "left_out")
    assert outcomes(tmp_path, seeds=2) == left_out
    shutil.rmtree(tmp_path / "mini/evaluated/imagenet/net/third")
    run = Run("mini", "imagenet", "net", "third", 0)
    write_arrays(tmp_path, run, dict.fromkeys(("top1", "top5"), hits(100)), kind="predictions")
    assert outcomes(tmp_path) == left_out
    text = frames.text(ranking.rank(cells.collect(TABLE, scope(tmp_path)), ENTRANTS, "mini"))
    assert text.splitlines()[1] == "all,all,Strong,,0,0,0,0,1,mini"


def test_a_cell_counts_once_and_the_ranking_is_sorted(tmp_path: Path) -> None:
    complete(tmp_path)
    found = cells.collect(TABLE, scope(tmp_path))
    again = [dataclasses.replace(cell, key=cell.key._replace(table=98)) for cell in found]
    lines = frames.lines(ranking.rank([*found, *again], ENTRANTS, "mini"), ranking.Line)
    assert [line[:2] for line in lines[::3]] == [("all", "all"), ("family", "ImageNet"), ("setting", "B W4")]
    assert lines[0] == ("all", "all", "Strong", "100.0", 1, 1, 0, 0, 0, "mini")
    assert lines[1] == ("all", "all", "Third", "0.0", 1, 0, 0, 1, 0, "mini")


def test_the_first_metric_decides_where_the_second_one_says_else(tmp_path: Path) -> None:
    for recipe, top1, top5 in zip(TRIO, (700, 740, 100), (990, 800, 900), strict=True):
        write_arrays(tmp_path, Run("mini", "imagenet", "net", recipe, 0), {"top1": hits(top1), "top5": hits(top5)})
    assert outcomes(tmp_path) == {"Weak": "loses", "Strong": "leads", "Third": "loses"}


def entrants(scale: str, own: str | None = None) -> dict[str, ranking.Entrant]:
    plan = Plan(user_rows.configured(scale, own))
    return job.entrants(plan, [run for number in plan.complete_tables() for run in plan.table_runs(number)])


def test_methods_of_a_cell_have_equal_grids_and_preprocessing() -> None:
    found = entrants("real")
    whole, channel = (found[f"photographs/efficientnet-lite0/b-lrq-w4{end}"] for end in ("-tensor", ""))
    assert whole[:2] == channel[:2] == ("LRQ", "B W4")
    assert whole[2] != channel[2]
    of_cell = [method for method, _, place in found.values() if place == channel[2]]
    methods = {"AdaQuant", "AdaRound", "FlexRound", "GPTQ", "LRQ", "RTN", "SignRound"}
    assert sorted(of_cell) == sorted(methods | {"b-adaround-equal"})
    mini = entrants("mini")
    assert (
        mini["imagenet/mobilenetv2-brecq/cle-b-adaround-w4"][2] != mini["imagenet/mobilenetv2-brecq/b-adaround-w4"][2]
    )
    assert not [key for key in mini if key.endswith(("-tuned", "full-precision"))]


def test_own_rows_take_part_under_names_of_their_own(tmp_path: Path) -> None:
    """Also where the row comes first: the project's row stands in table 11 alone."""
    own = tmp_path / "own.yaml"
    own.write_text(
        "recipes: {mine-w4: {setting: B, rounding: adaquant-flexround, w_bits: 4}}\n"
        "rows: [{table: 2, recipe: mine-w4, method: Mine, bits: 4/32}]\n"
    )
    found, network = entrants("mini", str(own)), "imagenet/resnet18-brecq"
    assert found[f"{network}/mine-w4"] == ("mine", *found[f"{network}/b-flexround-w4"][1:])
    assert found[f"{network}/b-adaquant-flexround-w4"][0] == "AdaQuantFlexRound"


def test_a_run_at_equal_iterations_replaces_its_methods_own(tmp_path: Path) -> None:
    complete(tmp_path)
    found = cells.collect(TABLE, scope(tmp_path))
    strong, third = (next(cell for cell in found if cell.run.recipe == name) for name in ("strong", "third"))
    run = dataclasses.replace(strong.run, recipe="strong-equal")
    equal = dataclasses.replace(strong, run=run, trials=third.trials, compare=False)
    lines = frames.lines(ranking.rank([*found, equal], ENTRANTS, "mini"), ranking.Line)
    leads = {(line.by, line.method): line.leads for line in lines}
    assert leads["all", "Strong"] == 1
    assert leads["equal iterations", "Strong"] == 0
    assert leads["equal iterations", "Weak"] == 1
    assert not ranking.at_equal_iterations(ranking.contests(found, ENTRANTS), found)
