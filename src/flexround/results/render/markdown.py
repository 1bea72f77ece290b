"""Tables in Markdown, and text with Markdown's marks escaped."""

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table whose first ``texts`` columns are text and whose other columns are numbers."""
    under = ["---"] * texts + ["--:"] * (len(header) - texts)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, under, *rows))


def escape(text: str) -> str:
    """Return plain text on one line with Markdown's marks escaped."""
    return re.sub(r"([\\`*_\[\]<>|$#])", r"\\\1", " ".join(text.split()))
