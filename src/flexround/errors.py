"""The one exception family whose text is meant for the user.

A stage prints it without a traceback and exits with 2; everything else is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

SHOWN = 12  # names in a message
USER_ERROR = 2  # exit code of a program that ends with such an error


class FlexRoundError(Exception):
    """Something the user can mend: the message names the place, the value and the way out."""


class SettingsError(FlexRoundError):
    """A wrong key or value in ``params/`` or on the command line."""


class InputError(FlexRoundError):
    """A data set, checkpoint, sample file or state directory that can't be used."""


class NumericalError(FlexRoundError):
    """NaN or Inf where a finite number was needed."""


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return ``"'wrong' (did you mean 'right'? known: ...)"`` for an unknown name; at most ``SHOWN`` are listed."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=SHOWN)
    hint = f"did you mean {close[0]!r}? " if close else ""
    listed = names if len(names) <= SHOWN else sorted({*close, *names[: SHOWN - len(close)]})
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return f"{wrong!r} ({hint}known: {', '.join(listed)}{more})"


def some(names: Sequence[str], most: int = SHOWN) -> str:
    """Join the first names, at most so many, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def look_up(kind: str, known: Mapping[str, T], name: str) -> T:
    """Return what a name stands for.

    Raises:
        SettingsError: there is no such ``kind``.
    """
    if name not in known:
        raise SettingsError(f"{kind} {suggest(name, known)}")
    return known[name]
