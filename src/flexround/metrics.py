"""Every metric that a task computes or a table names. A new one is a line here and the code that computes it."""

import dataclasses
import math
import re

from flexround.errors import SettingsError, suggest

LARGEST_RATIO = 1.3  # of a block's hard error to its soft one; AdaRound that is cut off before it anneals has 2 to 9
VARIANT = re.compile(r"_\d+$")  # few-shot examples, or tokens of a block


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: in ``metrics.json``, or in ``published.csv`` where a table's ``metric_names`` gives it another.
        higher_is_better: its direction.
        relative: whether two values are compared by their ratio, so that margins are in percent of the other value.
    """

    name: str
    higher_is_better: bool = True
    relative: bool = False

    @property
    def sign(self) -> int:
        """What a value is multiplied by so that the larger one is better."""
        return 1 if self.higher_is_better else -1


def of(name: str) -> Metric:
    """Return a metric; ``arc_easy_5`` and ``ppl_2048`` are variants of ``arc_easy`` and ``ppl``.

    Raises:
        SettingsError: there is none of this name.
    """
    found = METRICS.get(name) or METRICS.get(VARIANT.sub("", name))
    if found is None:
        raise SettingsError(f"metric {suggest(name, METRICS)}; flexround/metrics.py has a line for each")
    return dataclasses.replace(found, name=name)


def bounds(metric: Metric) -> tuple[float, float]:
    """Return the lowest and the highest value that a metric can have: all but perplexities are in percent."""
    if metric.relative:
        return 1.0, math.inf  # the exponential of a mean that isn't negative
    return (-100.0 if VARIANT.sub("", metric.name) in CORRELATIONS else 0.0), 100.0


CORRELATIONS = ("matthews", "pearson", "spearman")  # they can be negative
PERCENT = (
    *("top1", "top5", "top1_photographs", "top1_validation", "acc", "acc_matched", "acc_mismatched", "f1", "em"),
    *("boolq", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"),
    *("bleu", "unseen", "seen", "all", *CORRELATIONS),
)
PERPLEXITIES = ("ppl", "perplexity")
METRICS = {name: Metric(name) for name in PERCENT}
METRICS |= {name: Metric(name, higher_is_better=False, relative=True) for name in PERPLEXITIES}
