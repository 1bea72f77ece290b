"""Measure the golden numbers of `tests/golden.py` and their tolerances, and write `tests/golden.csv` anew.

    PYTHONPATH=tests:worlds python bench/golden_numbers.py    # two minutes

The tolerance of a number is three times the furthest that it moved in ``VARIANTS``. A number may stay where it is in a
few variants by luck. So its tolerance is at least that of the median recipe, relative to its value, and at least
``FLOOR``; not for RTN, which learns nothing. Seeds are not varied: other draws give other numbers, and must be noticed.
"""

import statistics
from collections import defaultdict

import golden

VARIANTS = ((1, 1), (2, 1), (3, 1), (4, 2))  # number and threads
FLOOR = 1e-5


def main() -> None:
    """Write value, tolerance and largest deviation of each number."""
    values, *others = (
        {name: value for probe in golden.PROBES for name, value in golden.compute(probe, *variant).items()}
        for variant in ((0, 1), *VARIANTS)
    )
    furthest = {name: max(abs(other[name] - value) for other in others) for name, value in values.items()}
    relative: dict[str, list[float]] = defaultdict(list)  # by what a number is of, whichever the recipe
    for name, value in values.items():
        if abs(value) > FLOOR:  # beside a value that is zero but for rounding, any deviation is large
            relative[name.partition("/")[2]].append(furthest[name] / abs(value))
    lines = ["name,value,tolerance,largest_deviation\n"]
    for name, value in values.items():
        alike = relative.get(name.partition("/")[2], [0.0])
        usual = 0.0 if "b-rtn-" in name else abs(value) * statistics.median(alike)
        tolerance = max(3 * furthest[name], 3 * usual, FLOOR * max(1.0, abs(value)))
        lines.append(f"{name},{value:.9g},{tolerance:.9g},{furthest[name]:.9g}\n")
    golden.FILE.write_text("".join(lines))


if __name__ == "__main__":
    main()
