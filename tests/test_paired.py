"""Significance: the paired tests of two trials and of several seeds."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flexround.errors import InputError
from flexround.results.evaluated import Trial
from flexround.results.paired import difference, p_value


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


@pytest.mark.parametrize(("won", "lost"), [(5, 0), (4, 12), (0, 0), (1600, 1450)])
def test_right_or_wrong_is_mcnemars_exact_test(won: int, lost: int) -> None:
    one, other = np.ones(4000), np.ones(4000)
    other[:won], one[4000 - lost :] = 0, 0
    expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    trials = pair("scores", one, other)
    assert p_value(*trials) == pytest.approx(expected, rel=1e-9)
    value = trials[0].value - trials[1].value
    assert difference(*([each] for each in trials)) == (value, error(*trials), 1.96 * error(*trials), p_value(*trials))


def test_real_scores_are_the_paired_normal_test() -> None:
    rng = np.random.default_rng(1)
    other = rng.random(500)
    trials = pair("scores", 0.9 * other + 0.1 * rng.random(500), other)
    z = (trials[0].value - trials[1].value) / error(*trials)
    assert 0.01 < p_value(*trials) < 0.99  # neither certain
    assert p_value(*trials) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=0.01)


@pytest.mark.parametrize(("shift", "expected"), [(0.0, 1.0), (0.01, 0.0)])
def test_equal_differences_of_all_examples(shift: float, expected: float) -> None:
    assert p_value(*pair("scores", np.full(8, 0.5 + shift), np.full(8, 0.5))) == expected


@pytest.mark.parametrize(("below", "equal", "expected"), [(3, 1, 0.10), (0, 0, 0.02), (96, 0, 0.08), (0, 99, 1.0)])
def test_replicates_are_counted_beyond_zero(below: int, equal: int, expected: float) -> None:
    one = np.r_[np.full(below, -1.0), np.zeros(equal), np.ones(99 - below - equal)]
    trials = pair("replicates", one, np.zeros(99))
    assert p_value(*trials) == pytest.approx(expected)
    assert error(*trials) == pytest.approx(one.std(ddof=1))


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
    leads, errors, noise, p_values = np.array(found).T
    assert ((abs(leads) > noise) == (p_values < 0.05)).all()
    assert 0.005 < (p_values < 0.05).mean() < 0.09
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(leads), rel=0.15)


def test_replicates_are_averaged_over_seeds_and_one_seed_meets_each_of_the_other_side() -> None:
    rng = np.random.default_rng(5)
    ones, others = rng.random((3, 200)), rng.random((3, 200))
    sides = [[trial("replicates", values) for values in side] for side in (ones, others)]
    leads = 100 * (ones - others).mean(1)
    expected = np.hypot((ones - others).mean(0).std(ddof=1), leads.std(ddof=1) / 3**0.5)
    assert difference(*sides).stderr == pytest.approx(expected)
    assert difference(sides[0][:1], sides[1]) == difference(sides[0][:1] * 3, sides[1])


def test_equal_seeds_are_equal() -> None:
    equal = [trial("scores", np.full(8, 0.5))] * 3
    assert difference(equal, equal) == (0.0, 0.0, 0.0, 1.0)


def test_a_bootstrap_of_few_examples_decides_nothing() -> None:
    one, other = (trial("replicates", 30 + shift + np.linspace(0, 0.1, 1000)) for shift in (0.0, 1.0))
    for count, known in ((1, False), (11, False), (12, True)):
        found = difference(*([dataclasses.replace(each, n_examples=count)] for each in (one, other)))
        assert np.isfinite(found.noise) == known
