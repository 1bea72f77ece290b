"""Significance: the paired tests of two trials and of several seeds."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from flexround.errors import InputError
from flexround.results.evaluated import Trial
from flexround.results.paired import difference
from flexround.tasks.text_metrics import perplexity


@dataclasses.dataclass(frozen=True)
class Made(Trial):
    """An evaluated trial whose array of one kind lies in no file."""

    kind: str
    values: np.ndarray

    def scores(self) -> np.ndarray | None:
        return 100.0 * self.values if self.kind == "scores" else None

    def replicates(self) -> np.ndarray | None:
        return self.values if self.kind == "replicates" else None


def trial(kind: str, values: np.ndarray) -> Made:
    return Made(Path(), "m", 100.0 * float(np.mean(values)), 2.0, len(values), kind, np.asarray(values, float))


def pair(kind: str, one: np.ndarray, other: np.ndarray) -> tuple[Trial, Trial]:
    return trial(kind, one), trial(kind, other)


def error(one: Trial, other: Trial) -> float:
    return difference([one], [other]).stderr


def p_value(one: Trial, other: Trial) -> float | None:
    return difference([one], [other]).p_value


@pytest.mark.parametrize(("won", "lost"), [(5, 0), (4, 12), (0, 0), (1600, 1450)])
def test_right_or_wrong_is_mcnemars_exact_test(won: int, lost: int) -> None:
    one, other = np.ones(4000), np.ones(4000)
    other[:won], one[4000 - lost :] = 0, 0
    expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    trials = pair("scores", one, other)
    assert p_value(*trials) == pytest.approx(expected, rel=1e-9)
    value = trials[0].value - trials[1].value
    assert difference(*([each] for each in trials))[:2] == (value, error(*trials))


def test_real_scores_are_students_paired_test() -> None:
    other = np.random.default_rng(1).random(9)
    one = 0.9 * other + 0.1 * np.random.default_rng(2).random(9)
    found, expected = difference(*([each] for each in pair("scores", one, other))), stats.ttest_rel(one, other)
    low, high = expected.confidence_interval()
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.value - found.noise, found.value + found.noise) == pytest.approx((100 * low, 100 * high))


@pytest.mark.parametrize(("shift", "expected"), [(0.0, 1.0), (0.01, 0.0)])
def test_equal_differences_of_all_examples(shift: float, expected: float) -> None:
    assert p_value(*pair("scores", np.full(8, 0.5 + shift), np.full(8, 0.5))) == expected


@pytest.mark.parametrize("blocks", [12, 20, 40])
def test_the_interval_of_a_perplexity_misses_in_5_percent(blocks: int) -> None:
    """Of few blocks, whose losses differ as those of released networks do: standard deviations of 0.3 and 0.03 nats."""
    rng, missed, significant = np.random.default_rng(blocks), 0, 0
    for _ in range(600):
        losses = 3 + 0.3 * rng.standard_normal(blocks)
        made = [perplexity(losses), perplexity(losses + 0.03 * rng.standard_normal(blocks))]
        sides = [Made(Path(), "ppl", each.value, 2.0, blocks, "replicates", each.replicates) for each in made]
        found = difference(sides[:1], sides[1:])
        missed += abs(found.value) > found.noise
        significant += found.p_value < 0.05
    assert missed == significant
    assert 0.03 < missed / 600 < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5


def measured(counts: np.ndarray, metric: str, side: int) -> np.ndarray:
    """Return a metric of one of two methods, given counts[..., label, answer of one, answer of the other]."""
    (tn, fp), (fn, tp) = np.moveaxis(counts.sum(-2 if side else -1), (-2, -1), (0, 1)).astype(float)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    found = {
        "acc": (tp + tn) / (tp + tn + fp + fn),
        "f1": 2 * tp / (2 * tp + fp + fn),
        "matthews": (tp * tn - fp * fn) / np.sqrt(product),
    }
    return 100 * found[metric]


@pytest.mark.parametrize(("lost", "won"), [((1, 1), 0), ((0, 1), 0), ((1, 1), 5e-4)])  # by label
@pytest.mark.parametrize(
    ("metric", "examples"), [("acc", 872), ("acc", 5000), ("matthews", 1043), ("matthews", 10_000), ("f1", 1043)]
)
def test_equal_is_seldom_said_at_the_bound(metric: str, examples: int, lost: tuple[int, int], won: float) -> None:
    """Two methods that differ by the bound of half a point get less than it on at most 2.5 % of test sets."""

    def population(part: float) -> np.ndarray:
        shares = np.zeros((2, 2, 2))
        for label, (right, wrong) in enumerate([(0.6, 0.1), (0.2, 0.1)]):
            moved = part * lost[label]
            shares[label, label, [label, 1 - label]] = right - moved, moved
            shares[label, 1 - label, [label, 1 - label]] = won, wrong - won
        return shares

    def gap(part: float) -> float:
        return float(np.subtract(*(measured(population(part), metric, side) for side in (0, 1)))) - 0.5

    rng, count, said = np.random.default_rng(3), 400, 0
    shares = population(optimize.brentq(gap, 0, 0.05))
    for counts in rng.multinomial(examples, shares.ravel(), size=count).reshape(-1, 2, 2, 2):
        if metric == "acc":
            label, *answers = np.repeat(list(np.ndindex(2, 2, 2)), counts.ravel(), axis=0).T
            trials = [trial("scores", answer == label) for answer in answers]
        else:
            drawn = rng.multinomial(examples, counts.ravel() / examples, size=1000).reshape(-1, 2, 2, 2)
            facts = [(float(measured(counts, metric, side)), measured(drawn, metric, side)) for side in (0, 1)]
            trials = [Made(Path(), metric, value, 2.0, examples, "replicates", values) for value, values in facts]
        said += difference(trials[:1], trials[1:]).apart <= 0.5
    assert said / count <= 0.025 + 3 * (0.025 * 0.975 / count) ** 0.5


def test_nothing_to_pair_has_no_p_value() -> None:
    one, other = pair("predictions", np.zeros(9), np.zeros(9))
    assert p_value(one, other) is None
    assert error(one, other) == pytest.approx(8**0.5)
    assert error(one, dataclasses.replace(other, stderr=None)) == np.inf
    with pytest.raises(InputError, match=r"9 examples, but .* has 8"):
        difference([one], [dataclasses.replace(other, n_examples=8)])
    found = difference([one, one], [other, trial("predictions", np.full(9, 0.02))])
    assert found.p_value is None
    assert found.stderr == pytest.approx((8 + 1) ** 0.5)  # 2.0 each on one test set; 0 and -2 over seeds


# several seeds


@pytest.mark.parametrize(("of_seeds", "of_examples"), [(0.0, 0.3), (0.05, 0.0), (0.02, 0.3)])
def test_the_error_over_seeds_is_that_of_repeated_experiments(of_seeds: float, of_examples: float) -> None:
    """Of 400 experiments with a true difference of 0 about 5 % are significant, however the variance is shared."""
    rng, count, found = np.random.default_rng(3), 50, []
    for _ in range(400):
        examples = of_examples * rng.standard_normal(count)  # shared by the seeds, as a test set is
        others = [rng.random(count) for _ in range(3)]
        ones = [other + examples + of_seeds * rng.standard_normal() for other in others]
        found.append(difference(*([trial("scores", values) for values in side] for side in (ones, others))))
        assert found[-1].value == pytest.approx(100 * np.mean(np.subtract(ones, others)))
    leads, errors, noise, p_values, _ = np.array(found).T
    assert ((abs(leads) > noise) == (p_values < 0.05)).all()
    assert 0.005 < (p_values < 0.05).mean() < 0.09
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(leads), rel=0.15)


def test_replicates_are_averaged_and_one_seed_meets_each_other() -> None:
    rng = np.random.default_rng(5)
    ones, others = rng.random((3, 200)), rng.random((3, 200))
    sides = [[trial("replicates", values) for values in side] for side in (ones, others)]
    leads = 100 * (ones - others).mean(1)
    expected = np.hypot((ones - others).mean(0).std(ddof=1) * (200 / 199) ** 0.5, leads.std(ddof=1) / 3**0.5)
    assert difference(*sides).stderr == pytest.approx(expected)
    assert difference(sides[0][:1], sides[1]) == difference(sides[0][:1] * 3, sides[1])


def test_equal_seeds_are_equal() -> None:
    equal = [trial("scores", np.full(8, 0.5))] * 3
    assert difference(equal, equal)[:4] == (0.0, 0.0, 0.0, 1.0)


def test_a_bootstrap_of_few_examples_decides_nothing() -> None:
    one, other = (trial("replicates", 30 + shift + np.linspace(0, 0.1, 1000)) for shift in (0.0, 1.0))
    for count, known in ((1, False), (11, False), (12, True)):
        found = difference(*([dataclasses.replace(each, n_examples=count)] for each in (one, other)))
        assert np.isfinite(found.noise) == known
