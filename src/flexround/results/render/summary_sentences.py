"""What was found, in a few sentences: from the judged claims and the contests of the tables."""

from collections import Counter
from collections.abc import Mapping, Sequence

from flexround.results.claims.judged import BETTER, EQUAL, FAILS, HOLDS, NOISE, NOT_RUN, UNDECIDED, WORSE, Judgement
from flexround.results.render.overview import Standing

NOTHING = "Nothing has been computed at this scale yet, and nothing is published of it."
SHOWN = 5  # runs in a sentence


def sentences(
    verdicts: Mapping[str, int], leads: Sequence[Judgement], standings: Sequence[Standing], others: Sequence[str] = ()
) -> list[str]:
    """Return the sentences that the page begins with.

    ``verdicts`` count the comparisons of all claims, ``leads`` are those of FlexRound with AdaRound, ``others`` the
    evaluated runs that none of the tables shows.
    """
    found = []
    if judged := sum(verdicts.values()) - verdicts.get(NOT_RUN, 0):
        found.append(
            f"The paper's claims make {judged} comparisons that were run here: {verdicts[HOLDS]} hold, "
            f"{verdicts[FAILS]} do not, and {verdicts[NOISE]} are inside the noise."
        )
    if verdicts.get(NOT_RUN):
        found.append(f"{verdicts[NOT_RUN]} more were not run.")
    if leads:
        of = Counter(line.verdict for line in leads)
        found.append(
            f"FlexRound against AdaRound, in {len(leads)} cells that differ in the rounding alone: "
            f"{of[HOLDS] + of[FAILS]} are decided, {of[HOLDS]} for FlexRound and {of[FAILS]} for AdaRound; "
            f"{of[NOISE]} are inside the noise."
        )
        found.append(outcomes(leads))
    won, settled = (sum(standing.wins[side] for standing in standings) for side in (0, 1))
    if settled:
        found.append(
            f"Of the {settled} cells that beat every other method by more than the noise, {won} are FlexRound's."
        )
    reached = sum((Counter(standing.counts) for standing in standings), Counter[str]())
    if compared := reached["reproduced"] + reached["close"] + reached["off"]:
        found.append(f"{reached['reproduced']} of {compared} cells are within the tolerance of the paper's number.")
    if others:
        shown = [*others[:SHOWN], *([f"{len(others) - SHOWN} more"] if len(others) > SHOWN else [])]
        found.append(f"Evaluated, but in no table of this page: {', '.join(shown)}.")
    return found or [NOTHING]


def outcomes(leads: Sequence[Judgement]) -> str:
    """Return the sentence that counts the outcomes of the comparisons of FlexRound with AdaRound."""
    of = Counter(line.outcome.partition(",")[0] for line in leads if line.outcome)
    equal = sorted(outcome for outcome in of if outcome.startswith(EQUAL)) or [EQUAL]
    counts = ", ".join(f"{of[outcome]} {outcome}" for outcome in (BETTER, WORSE, *equal, UNDECIDED))
    method = "p adjusted by Benjamini and Hochberg's method for all comparisons"
    return f"FlexRound against AdaRound, {method}: {counts}, of {of.total()}."
