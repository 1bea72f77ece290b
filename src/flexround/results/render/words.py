"""Words for readers: names of keys and metrics, a table's marks and scale, and LaTeX as plain text."""

import re

from flexround.results.grid import Entry, TableGrid
from flexround.results.table_csv import NOT_RUN
from flexround.settings.schema import Hyper, Recipe, ScaleFacts, label
from flexround.settings.tables import Table

METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "top1_photographs": "top-1, photographs",
    "top1_validation": "top-1, validation",
    "acc": "accuracy",
    "acc_matched": "matched",
    "acc_mismatched": "mismatched",
    "f1": "F1",
    "em": "exact match",
    "matthews": "Matthews' correlation",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    "bleu": "BLEU",
    "ppl": "perplexity",
}
CHOICE = {"selected": "selected among recipes"}
SETTINGS = {name: label(field) for kind in (Hyper, Recipe) for name, field in kind.model_fields.items()}
WORDS = METRICS | CHOICE | SETTINGS
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"
SIGNS = {  # LaTeX -> text; double quotes before single ones
    **{"``": "\u201c", "''": "\u201d", "`": "\u2018", "'": "\u2019"},
    **{r"\odot": "\u2299", r"\rightarrow": "\u2192", r"\lfloor": "\u230a", r"\rceil": "\u2309"},
}


def of(key: str) -> str:
    """Return the words for a key, or for several keys joined by slashes; an unlisted key is turned into words."""
    return "/".join(WORDS.get(part) or part.replace("_", " ") for part in key.split("/"))


def listed(*parts: str) -> str:
    """Return the non-empty parts of a text, joined by commas."""
    return ", ".join(filter(None, parts))


def probability(p: str | float | None) -> str:
    """Return a p value for readers, with at most four decimals; empty if it is missing."""
    return "" if p in (None, "") else "< 0.0001" if float(p) < 1e-4 else f"{float(p):.4f}"


def labels(grid: TableGrid, table: Table) -> list[tuple[str, str]]:
    """Return the columns left of the numbers: a row's field with its header, for each column."""
    names = grid.told_apart
    if table.descriptive:
        names.insert(table.method_at, "method")
    return [(name, table.descriptive[table.method_at] if name == "method" else name.capitalize()) for name in names]


def scale_note(scale: ScaleFacts) -> str:
    """Return the sentence about the origin of the numbers; for the paper's networks it includes the budgets."""
    if scale.comparable:
        return f"Scale {scale.name}: {scale.description}."
    return f"Scale {scale.name}: own models and data, not the paper's."


def absent(entry: Entry, missing: str) -> str:
    """Return the text of a cell without a value: "not run" if the run was not selected, or else ``missing``."""
    return NOT_RUN if entry.status == NOT_RUN else missing


def legend(grid: TableGrid, best: str = "Bold", partial: str = "†", missing: str = "—") -> str:
    """Return the meaning of the marks that the table has."""
    entries = grid.entries
    contest = " and ".join(name for name in ("section", "bits") if any(getattr(e, name) for e in entries)) or "column"
    marks = (
        (any(entry.best for entry in entries), f"{best}: best of its {contest} by more than the noise."),
        (any(entry.status == "partial" for entry in entries), f"{partial}: not all seeds are computed yet."),
        (any(entry.status == "missing" for entry in entries), f"{missing}: not computed."),
    )
    return " ".join(sentence for present, sentence in marks if present)


def plain(latex: str) -> str:
    r"""Return LaTeX text as plain text, for HTML: ``\%``, quotes, ties, subscripts; other commands are dropped."""
    text = re.sub(r"\\textsubscript\{([^}]*)\}", r"-\1", latex)  # sizes: BERT-Base, OPT-125M
    text = re.sub(r"(?<!\\)_(\d)", lambda digit: SUBSCRIPTS[int(digit[1])], text)
    text = re.sub(r"\\([%&#_])", r"\1", text).replace("~", " ").replace("$", "")
    for written, sign in SIGNS.items():
        text = text.replace(written, sign)
    return re.sub(r"\\[a-zA-Z]+\s*|[{}]", "", text)
