"""The claims and the errata as the rows that the report shows of them."""

from collections.abc import Sequence

from flexround import metrics
from flexround.results.claims.errata import Erratum
from flexround.results.claims.verdicts import FAILS, NOT_RUN, JudgedClaim, Judgement
from flexround.results.render import words

COMPARISONS = (
    *("Place", "Cell", "Rows", "Claim", "Iterations", "Paper"),
    *("Ours", "Noise", "p", "p adjusted", "Verdict", "Outcome"),
)
ERRATA = ("Kind", "Place", "Row", "Cell", "Printed", "What is wrong")


def comparisons(claim: JudgedClaim) -> list[tuple[object, ...]]:
    """Return a row for each comparison of a claim, see ``COMPARISONS``."""
    return [
        (
            line.place.capitalize(),
            _cell(line),
            f"{line.one.split(' [')[0]} / {line.other.split(' [')[0]}",
            line.criterion,
            f"{line.iterations or '—'} / {line.other_iterations or '—'}",
            _signed(line.published_margin, line.metric) + (f", {FAILS}" if line.published == FAILS else ""),
            _signed(line.margin, line.metric),
            line.noise or ("—" if line.verdict == NOT_RUN else "unknown"),
            words.probability(line.p_value) or "—",
            words.probability(line.p_adjusted) or "—",
            line.verdict,
            line.outcome or "—",
        )
        for line in claim.lines
    ]


def errata(mistakes: Sequence[Erratum]) -> list[tuple[object, ...]]:
    """Return a row for each erratum, see ``ERRATA``."""
    return [(m.kind, f"Table {m.table}, row {m.row}", m.method, _cell(m), m.value, m.text) for m in mistakes]


def _cell(line: Judgement | Erratum) -> str:
    """Return where in its table a number stands."""
    return words.listed(line.section, line.column, line.bits, words.of(line.metric))


def _signed(margin: str, metric: str) -> str:
    return "—" if not margin else f"{float(margin):+.2f}{' %' if metrics.of(metric).relative else ''}"
