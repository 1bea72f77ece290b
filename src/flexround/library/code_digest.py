"""What unfinished work is known by, besides the user's own choices: the code that decides its bits."""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.quant.rounding import Rounding
from flexround.settings import reach


def of(entry: str, rounding: Callable[..., Rounding]) -> str:
    """Return a sha256 of the code that an entry and a rounding can import; comments count only in notebooks.

    Args:
        entry: ``package.module:name`` of the function that runs.
        rounding: the class that rounds, or a function that makes it; of a module, a script or a notebook.

    Raises:
        InputError: code that was typed in where it can't be read again, so that an edit of it would not be noticed.
    """
    starts, texts = [entry], []
    for base in rounding.__mro__ if isinstance(rounding, type) else (rounding,):
        if base.__module__ == "__main__":
            texts.append(_typed(base))
        else:
            starts.append(f"{base.__module__}:{base.__qualname__}")
    files = sorted(module.digest for module in reach.closure(*starts))
    return hashlib.sha256(json.dumps([files, texts]).encode()).hexdigest()


def _typed(base: Any) -> str:
    """Return the text of a class or function of a script, with all that stands beside it, or of a notebook."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        if script and Path(script).is_file():
            return Path(script).read_text(encoding="utf-8")
        parts = vars(base).values() if isinstance(base, type) else [base]
        return "\n".join(inspect.getsource(part) for part in parts if inspect.isfunction(part))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"state: the code of rounding {base.__qualname__} can't be read ({error}), and without it an edit would "
            "not be noticed; put the class into a file, or leave state out"
        ) from error
