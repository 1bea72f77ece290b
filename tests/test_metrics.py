"""The registry of metrics: names of tasks and of tables, their units and directions."""

import pytest
from table_runs import OF_RUNS

from flexround import metrics
from flexround.errors import SettingsError
from flexround.results import paper_numbers


@pytest.mark.parametrize(
    ("name", "unit", "higher_is_better", "relative"),
    [
        ("top1", "%", True, False),
        ("boolq_5", "%", True, False),
        ("matthews", "points", True, False),
        ("unseen", "points", True, False),
        ("perplexity", "", False, True),
        ("ppl_2048", "", False, True),
    ],
)
def test_unit_and_direction(name: str, unit: str, higher_is_better: bool, relative: bool) -> None:
    assert metrics.of(name) == metrics.Metric(name, unit, higher_is_better, relative)


def test_every_metric_of_the_tables_and_of_the_paper_is_known() -> None:
    cells = [cell for table in OF_RUNS.values() for cell in table.cells()]
    names = {metric for cell in cells for metric in cell.metrics}
    names |= {key.metric for key in paper_numbers.load()} - {paper_numbers.SETTING}
    assert len(names) > 20
    assert [metrics.of(name).name for name in sorted(names)] == sorted(names)


def test_another_one_is_refused_with_its_neighbour() -> None:
    with pytest.raises(SettingsError, match=r"metric 'top_1' \(did you mean 'top1'\?"):
        metrics.of("top_1")
