"""Two rows of the user's choice, compared from the scores that are there."""

import pytest
from report_case import SCORES
from table_runs import OF_RUNS, fill

from flexround.errors import FlexRoundError
from flexround.tools import compare


def compared(*arguments):
    compare.run(compare.parser().parse_args(arguments))


def test_each_column_has_its_paired_difference(tmp_path, capsys):
    fill(tmp_path, OF_RUNS["table03"], SCORES)
    compared("table3", "Q + FlexRound", "B + AdaRound", f"--results={tmp_path}")
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["bits", "section"]
    assert len(lines) == 2 * 3 * 2, "bits, networks, metrics"
    assert lines[0].split() == [
        *("4/4", "ResNet-18", "top1", "85.00", "80.00", "+5.00"),
        *("+3.65", "to", "+6.35", "<", "0.0001", "1000", "1"),
    ]


@pytest.mark.parametrize(("rows", "message"), [(("Nobody", "RTN"), "Nobody"), (("Q + Flex", "Q + Ada"), "evaluated")])
def test_what_cannot_be_compared(tmp_path, rows, message):
    with pytest.raises(FlexRoundError, match=message):
        compared("table3", *rows, f"--results={tmp_path}")
