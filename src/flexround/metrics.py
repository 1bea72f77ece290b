"""Every metric that a task computes or a table names. A new metric needs a line here and code that computes it."""

import dataclasses
import re

from flexround.errors import SettingsError, suggest

LARGEST_RATIO = 1.3  # of a block's hard error to its soft error; AdaRound stopped before annealing reaches 2 to 9
VARIANT = re.compile(r"_\d+$")  # number of few-shot examples, or tokens per block


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: key in ``metrics.json``, or in ``published.csv`` where a table's ``metric_names`` renames it.
        higher_is_better: whether larger values are better.
        relative: whether two values are compared by their ratio, with margins in percent of the other value.
    """

    name: str
    higher_is_better: bool = True
    relative: bool = False

    @property
    def sign(self) -> int:
        """The factor, 1 or -1, that makes larger values better."""
        return 1 if self.higher_is_better else -1


def of(name: str) -> Metric:
    """Return a metric; ``arc_easy_5`` and ``ppl_2048`` are variants of ``arc_easy`` and ``ppl``.

    Raises:
        SettingsError: no metric has this name.
    """
    found = METRICS.get(name) or METRICS.get(VARIANT.sub("", name))
    if found is None:
        raise SettingsError(f"metric {suggest(name, METRICS)}; flexround/metrics.py has a line for each")
    return dataclasses.replace(found, name=name)


PERCENT = (
    *("top1", "top5", "top1_photographs", "top1_validation", "acc", "acc_matched", "acc_mismatched", "f1", "em"),
    *("boolq", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "openbookqa"),
    *("bleu", "unseen", "seen", "all", "matthews", "pearson", "spearman"),
)
PERPLEXITIES = ("ppl", "perplexity")
METRICS = {name: Metric(name) for name in PERCENT}
METRICS |= {name: Metric(name, higher_is_better=False, relative=True) for name in PERPLEXITIES}
