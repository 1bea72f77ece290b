"""Numbers are the golden ones."""

import csv
from collections import defaultdict

import golden
import pytest

GOLDEN = defaultdict(dict)
for line in csv.DictReader(golden.FILE.read_text().splitlines()):
    tolerance = float(line["tolerance"])
    GOLDEN[line["name"].partition("/")[0]][line["name"]] = pytest.approx(float(line["value"]), abs=tolerance)


@pytest.mark.parametrize("probe", [*golden.PROBES])
def test_the_numbers_are_the_golden_ones(probe):
    assert golden.compute(probe) == GOLDEN[probe]
