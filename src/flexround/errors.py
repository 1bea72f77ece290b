"""The exceptions whose messages are written for the user.

A stage prints such a message without a traceback and exits with 2. Other exceptions are bugs and keep their traceback.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

SHOWN = 12  # names in a message
USER_ERROR = 2  # exit code after such an error


class FlexRoundError(Exception):
    """An error that the user can fix: the message names the place, the value and the remedy."""


class SettingsError(FlexRoundError):
    """A wrong key or value in ``params/`` or on the command line."""


class InputError(FlexRoundError):
    """A data set, checkpoint, sample file or state directory that can't be used."""


class NumericalError(FlexRoundError):
    """NaN or Inf where a finite number was needed."""


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return ``"'wrong' (did you mean 'right'? known: ...)"`` for an unknown name, with at most ``SHOWN`` names."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=SHOWN)
    hint = f"did you mean {close[0]!r}? " if close else ""
    listed = names if len(names) <= SHOWN else sorted({*close, *names[: SHOWN - len(close)]})
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return f"{wrong!r} ({hint}known: {', '.join(listed)}{more})"


def some(names: Sequence[str], most: int = SHOWN) -> str:
    """Join at most ``most`` names and add the number of omitted names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def look_up(kind: str, known: Mapping[str, T], name: str) -> T:
    """Return the value of ``name`` in ``known``.

    Raises:
        SettingsError: ``name`` is unknown; the message calls it a ``kind``.
    """
    if name not in known:
        raise SettingsError(f"{kind} {suggest(name, known)}")
    return known[name]
