"""Sentinels: small exact numbers that show a defect which is lost in the noise of a table's accuracies.

Their tolerance is three times the furthest that they moved when they were computed with one and two threads on networks
and inputs changed by some millionths (``VARIANTS``): what a machine that rounds differently may change. A number may
stay where it is in a few variants by luck, so its tolerance is at least that of the median recipe, relative to its
value, and at least ``FLOOR``; not for RTN, where nothing is learned. Seeds are not varied: other draws are other
numbers, and are to be noticed.
"""

import csv
import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from flexround.errors import FlexRoundError, InputError
from flexround.regress.probes import arithmetic, data, engine
from flexround.results.table_csv import write

Probe = Callable[[int], dict[str, float]]
VARIANTS = ((1, 1), (1, 2), (1, 3), (2, 4))  # threads and number of the change; (1, 0) gives the values
MARGIN = 3.0
NEAREST = "b-rtn-"  # recipes in which nothing is learned
FLOOR = 1e-5
COLUMNS = ("name", "value", "tolerance", "largest_deviation")

PROBES: dict[str, Probe] = {
    "search": arithmetic.search,
    "dropping": arithmetic.dropping,
    "surgery": arithmetic.surgery,
    "scales": engine.scales,
    "metrics": arithmetic.metrics,
    "perplexity": data.perplexity,
    "questions": data.questions,
    **{f"calibration-{name}": functools.partial(data.calibration, name) for name in data.TASKS},
    **{recipe: functools.partial(engine.probe, recipe) for recipe in engine.RECIPES},
}


class Sentinel(NamedTuple):
    """What is expected of one number: its value, how far it may be off, and how far it was in other variants."""

    value: float
    tolerance: float
    deviation: float


def compute(names: Iterable[str], threads: int = 1, variant: int = 0) -> dict[str, float]:
    """Return the numbers of some probes by ``probe/name``."""
    before, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(threads)
    # oneDNN for AVX2 writes past the gradient of a strided 1x1 kernel of fewer than eight channels.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        return {f"{name}/{key}": float(value) for name in names for key, value in PROBES[name](variant).items()}
    finally:
        torch.backends.mkldnn.enabled = onednn
        torch.set_num_threads(before)


def measure(names: Iterable[str] = PROBES) -> dict[str, Sentinel]:
    """Compute the numbers of some probes in all variants."""
    names = list(names)
    values = compute(names)
    return tolerate(values, [compute(names, threads, variant) for threads, variant in VARIANTS])


def tolerate(values: dict[str, float], variants: Sequence[dict[str, float]]) -> dict[str, Sentinel]:
    """Return sentinels from their values and what these are in some variants."""
    furthest = {name: max(abs(other[name] - value) for other in variants) for name, value in values.items()}
    relative: dict[str, list[float]] = defaultdict(list)  # by what a number is of, whichever the recipe
    for name, value in values.items():
        if abs(value) > FLOOR:  # beside a value that is zero but for rounding, any deviation is large
            relative[name.partition("/")[2]].append(furthest[name] / abs(value))
    found = {}
    for name, value in values.items():
        alike = relative.get(name.partition("/")[2], [0.0])
        usual = 0.0 if NEAREST in name else abs(value) * statistics.median(alike)
        floor = FLOOR * max(1.0, abs(value))
        found[name] = Sentinel(value, max(MARGIN * furthest[name], MARGIN * usual, floor), furthest[name])
    return found


def check(expected: dict[str, Sentinel], names: Iterable[str] = PROBES) -> list[str]:
    """Return a line for each number of some probes that is unexpected, missing or unknown, or of a probe that fails."""
    names = list(names)
    lines: list[str] = []
    found: dict[str, float] = {}
    for name in names:
        try:
            found |= compute([name])
        except FlexRoundError as error:
            lines.append(f"sentinel {name}: {error}")
    wanted = {name: sentinel for name, sentinel in expected.items() if name.partition("/")[0] in names}
    lines += [f"sentinel {name}: not in the reference" for name in sorted(found.keys() - wanted)]
    lines += [f"sentinel {name}: missing" for name in sorted(wanted.keys() - found)]
    for name in sorted(wanted.keys() & found):
        value, tolerance, _ = wanted[name]
        if not abs(found[name] - value) <= tolerance:  # also where it is NaN
            lines.append(f"sentinel {name}: {found[name]:.7g}, reference {value:.7g}, tolerance {tolerance:.1g}")
    return lines


def to_csv(sentinels: dict[str, Sentinel]) -> str:
    """Return sentinels as CSV."""
    lines = [[name, *(f"{number:.9g}" for number in sentinel)] for name, sentinel in sentinels.items()]
    return write((dict(zip(COLUMNS, line, strict=True)) for line in lines), COLUMNS)


def read(path: Path) -> dict[str, Sentinel]:
    """Read sentinels.

    Raises:
        InputError: missing or damaged.
    """
    try:
        lines = csv.DictReader(path.read_text().splitlines())
        return {line["name"]: Sentinel(*(float(line[name]) for name in COLUMNS[1:])) for line in lines}
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; restore it from git") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {error!r}; restore it from git") from error
