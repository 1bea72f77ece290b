"""A sample of the fuzz bench: damaged files are refused, or read as what they still hold."""

import logging

import fuzz
import pytest

CASES = 6  # of each kind; make fuzz has more
HEAVY = ("PyTorch", "directory of", "settings: ", "results with")  # seconds for a few cases


@pytest.mark.parametrize(
    "kind", [kind for kind in fuzz.kinds() if not kind.name.startswith(HEAVY)], ids=lambda kind: kind.name
)
def test_damaged_files_cause_no_traceback_and_no_wrong_result(kind):
    logging.disable(logging.CRITICAL)
    try:
        counts, defects = fuzz.run(kind, range(CASES))
    finally:
        logging.disable(logging.NOTSET)
    assert not defects, "\n".join(defects)
    assert counts.total() == CASES


def test_the_bench_notices_each_defect():
    def write(directory):
        (directory / "a.txt").write_text("12345")

    def fail(directory):
        if (directory / "a.txt").read_text() != "12345":
            raise KeyError("a")

    def told(read, **options):
        return fuzz.run(fuzz.Kind("it", write, read, **options), range(10))[0]

    assert told(fail)["traceback"] > 0
    assert told(lambda d: (d / "a.txt").read_bytes(), pinned=True)["silent"] > 0
    assert told(lambda d: (d / "a.txt").read_bytes())["other"] > 0
    assert told(lambda d: 1, pinned=True)["same"] == 10
