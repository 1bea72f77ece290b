"""Outcomes of comparisons: p-values adjusted for their number, and better, worse, equal or undecided."""

import csv
from pathlib import Path

import pytest
import yaml
from scipy import stats

from flexround.errors import SettingsError
from flexround.results import cells
from flexround.results.claims import specs, verdicts
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.load import load_params

BOUNDS = specs.Claims(claims={}, examples={}, equal_points=0.5, equal_percent=1)


def add(*values):
    columns = ("margin", "noise", "p_value", "metric")
    return verdicts.with_outcomes((dict(zip(columns, each, strict=True)) for each in values), BOUNDS)


def test_p_values_are_adjusted_for_all_lines_that_have_one():
    found = add(*(("1.00", "0.10", p, "top1") for p in ("0.0050", "0.0300", "", "0.0200", "0.5000")))
    # 0.005 * 4/1; 0.03 * 4/3; none; 0.02 * 4/2; 0.5 * 4/4
    assert [each.get("p_adjusted") for each in found] == ["0.0200", "0.0400", None, "0.0400", "0.5000"]
    apart = "undecided, at most 1.1 points apart"
    assert [each.get("outcome") for each in found] == ["better", "better", None, "better", apart]
    assert verdicts.with_outcomes([{"margin": ""}], BOUNDS) == [{"margin": ""}]


@pytest.mark.parametrize(
    ("margin", "noise", "p", "metric", "outcome"),
    [
        ("-1.00", "0.80", "0.0100", "top1", "worse"),
        ("0.30", "0.10", "0.0010", "top1", "better"),  # within the bound, but there
        ("-0.30", "0.20", "0.0500", "matthews", "equal within 0.5 points"),  # the test disagrees with the interval
        ("-0.31", "0.20", "0.2000", "top1", "undecided, at most 0.6 points apart"),  # the interval reaches -0.51
        ("0.40", "0.60", "0.2000", "perplexity", "equal within 1 %"),
        ("1.00", "1.10", "0.0100", "perplexity", "undecided, at most 2.1 % apart"),  # the test says else
        ("0.00", "", "1.0000", "top1", "undecided"),  # one example has no interval
    ],
)
def test_outcome(margin, noise, p, metric, outcome):
    assert add((margin, noise, p, metric))[0]["outcome"] == outcome


@pytest.mark.parametrize(("name", "params"), [("claims.csv", "claims"), ("real-claims.csv", "claims-real")])
def test_published_outcomes_follow_from_the_file_and_scipy(name, params):
    lines = list(csv.DictReader((ROOT / "results/reference" / name).read_text().splitlines()))
    assert verdicts.with_outcomes(lines, specs.load(PARAMS / f"{params}.yaml")) == lines
    p, adjusted = ([float(each[name]) for each in lines if each["p_value"]] for name in ("p_value", "p_adjusted"))
    assert adjusted == pytest.approx(list(stats.false_discovery_control(p)), abs=5.1e-5)


@pytest.mark.parametrize("bounds", [{"equal_points": 0}, {"equal_points": -0.5}, {"equal_points": "half"}, {}])
def test_a_bad_bound_is_refused(tmp_path, bounds):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": {}, "examples": {}, "equal_percent": 1, **bounds}))
    with pytest.raises(SettingsError, match=r"claims.yaml: equal_points"):
        specs.load(path)


def test_the_scale_real_compares_flexround_with_adaround_wherever_both_stand():
    params, pair = load_params("real"), ("{setting}-flexround-{bits}", "{setting}-adaround-{bits}")
    facing = specs.Claim(where="", text="", places=(), pairs=(pair,))
    scope = cells.Scope("real", params.recipes.recipes, 1, Path("nowhere"))
    tables = {table.place: cells.collect(table, scope) for table in params.tables.values()}
    both = {(cell.run, cell.metric) for found in tables.values() for cell, _ in facing.matches(found)}
    claims = specs.load(PARAMS / params.scale.shows.claims).claims.values()
    pairs = [pair for claim in claims for place in claim.places for pair in claim.matches(tables.get(place, []))]
    assert len(both) >= 18
    assert both <= {(one.run, one.metric) for one, other in pairs if "adaround" in other.run.recipe}
