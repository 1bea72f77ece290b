"""Names that may become parts of paths and commands, and numbers within reason: what their types don't say."""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from flexround.errors import SettingsError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FORMULA = ("=", "+", "-", "@")  # a cell of a CSV that begins so is computed by spreadsheet programs
TRIALS = 1000
UNREAD = ("args", "options", "when")  # what these hold belongs to somebody's function, or is compared
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("seeds", "sample_size_seeds"), (1, TRIALS)),
    **dict.fromkeys(("samples", "sample_sizes", "a_init_samples"), (1, 1e7)),
    **dict.fromkeys(("batch", "at_once", "rank", "alpha"), (1, 1e6)),
    **dict.fromkeys(("iters", "a_iters"), (0, 1e8)),
    **dict.fromkeys(("lr", "a_lr", "weight_decay", "loss_p", "a_loss_p", "w_init_p", "a_init_p"), (0, 100)),
    **dict.fromkeys(("reg_weight", "clip"), (0, 1e9)),
    **dict.fromkeys(("reg_beta_start", "reg_beta_end", "shift"), (0, 1e4)),
    **dict.fromkeys(("reg_warmup", "momentum", "label_smoothing", "dropout", "keep_probability"), (0, 1)),
    **dict.fromkeys(("epochs",), (1, 1e5)),
    **dict.fromkeys(("warmup",), (0, 1e5)),
    **dict.fromkeys(("seed",), (0, 2**53)),
    **dict.fromkeys(("threads",), (1, 1e4)),
    **dict.fromkeys(("gpu",), (0, 1e4)),
    **dict.fromkeys(("mem_mb", "gpu_mb"), (0, 1e9)),
    **dict.fromkeys(("runtime",), (1, 1e6)),
}


def check_ranges(document: Any, where: str) -> None:
    """Check the numbers of a scale, recipes or rules: those too that only a job will look at, such as ``train``.

    Raises:
        SettingsError: a line for each that is no number, or out of its range.
    """
    if errors := [f"{where}: {line}" for line in _out_of_range(document, ())]:
        raise SettingsError("\n".join(errors))


def _out_of_range(value: Any, place: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each number that can't be meant."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key in RANGES:
                yield from _of_key(inner, (*place, str(key)), *RANGES[key])
            elif key not in UNREAD:
                yield from _out_of_range(inner, (*place, str(key)))


def _of_key(value: Any, place: tuple[str, ...], least: float, most: float) -> Iterator[str]:
    """Yield a line for each number of a key, which may have one for each of several things."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _of_key(inner, (*place, str(key)), least, most)
    elif value is not None and (isinstance(value, bool | str) or not least <= value <= most):
        yield f"{'.'.join(place)} = {value!r}: give a number from {least:.12g} to {most:.12g}"


def check_names(names: Iterable[object], where: str) -> None:
    """Check names that become parts of paths.

    Raises:
        SettingsError: a line for each that isn't one.
    """
    if wrong := [name for name in names if not NAME.fullmatch(str(name))]:
        way = "of a name use only letters, digits and . _ -, the first a letter or digit: it becomes part of paths"
        raise SettingsError("\n".join(f"{where}: {name!r}: {way}" for name in wrong))


def check_inside(path: str | None, where: str) -> None:
    """Check a path that must lie below a directory of the project.

    Raises:
        SettingsError: it is absolute or empty, or has a ``..`` in it.
    """
    if path is not None and (
        not PurePosixPath(path).parts or path.startswith("/") or ".." in PurePosixPath(path).parts
    ):
        raise SettingsError(f"{where} = {path!r}: give a relative path without ..")


def check_label(text: str, where: str) -> None:
    """Check a text that becomes a cell of a CSV.

    Raises:
        SettingsError: a spreadsheet program would take it for a formula.
    """
    if text.startswith(FORMULA):
        raise SettingsError(f"{where} = {text!r}: spreadsheets compute what begins with {text[0]}; begin otherwise")
