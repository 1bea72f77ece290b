"""Significance: the paired tests of two trials and of several seeds."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from flexround.errors import InputError
from flexround.results.evaluated import Trial
from flexround.results.paired import difference, p_value, standard_error


def trial(directory: Path, kind: str, values: np.ndarray) -> Trial:
    """Write an array of one metric as an evaluated trial."""
    directory.mkdir()
    save_file({f"{kind}/m": values}, directory / "predictions.safetensors")
    return Trial(directory, "m", 100.0 * float(values.mean()), 2.0, len(values))


def pair(root: Path, kind: str, one: np.ndarray, other: np.ndarray) -> tuple[Trial, Trial]:
    return trial(root / "one", kind, one), trial(root / "other", kind, other)


@pytest.mark.parametrize(("won", "lost"), [(5, 0), (4, 12), (0, 0), (1600, 1450)])
def test_right_or_wrong_is_mcnemars_exact_test(tmp_path: Path, won: int, lost: int) -> None:
    one, other = np.ones(4000, np.uint8), np.ones(4000, np.uint8)
    other[:won], one[4000 - lost :] = 0, 0
    expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert p_value(*pair(tmp_path, "scores", one, other)) == pytest.approx(expected, rel=1e-9)


def test_real_scores_are_the_paired_normal_test(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    other = rng.random(500).astype(np.float32)
    one = (0.9 * other + 0.1 * rng.random(500)).astype(np.float32)
    trials = pair(tmp_path, "scores", one, other)
    z = (trials[0].value - trials[1].value) / standard_error(*trials)
    assert 0.01 < p_value(*trials) < 0.99  # neither certain
    assert p_value(*trials) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=0.01)


@pytest.mark.parametrize(("shift", "expected"), [(0.0, 1.0), (0.01, 0.0)])
def test_equal_differences_of_all_examples(tmp_path: Path, shift: float, expected: float) -> None:
    assert p_value(*pair(tmp_path, "scores", np.full(8, 0.5 + shift), np.full(8, 0.5))) == expected


@pytest.mark.parametrize(
    ("below", "equal", "expected"),
    [(3, 1, 0.10), (0, 0, 0.02), (96, 0, 0.08), (0, 99, 1.0)],
)
def test_replicates_are_counted_beyond_zero(tmp_path: Path, below: int, equal: int, expected: float) -> None:
    one = np.r_[np.full(below, -1.0), np.zeros(equal), np.ones(99 - below - equal)]
    assert p_value(*pair(tmp_path, "replicates", one, np.zeros(99))) == pytest.approx(expected)


def test_replicates_give_the_paired_standard_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    other = 50 + 3 * rng.standard_normal(1000)
    one = other + 1 + 0.1 * rng.standard_normal(1000)
    assert standard_error(*pair(tmp_path, "replicates", one, other)) == pytest.approx(0.1, rel=0.1)


def test_nothing_to_pair_has_no_p_value(tmp_path: Path) -> None:
    one, other = pair(tmp_path, "predictions", np.zeros(9), np.zeros(9))
    assert p_value(one, other) is None
    assert standard_error(one, other) == pytest.approx(8**0.5)
    assert standard_error(one, dataclasses.replace(other, stderr=None)) == np.inf
    with pytest.raises(InputError, match=r"9 examples, but .* has 8"):
        standard_error(one, dataclasses.replace(other, n_examples=8))


# several seeds


def seeds(root: Path, kind: str, arrays: list[np.ndarray]) -> list[Trial]:
    root.mkdir()
    return [trial(root / str(seed), kind, values) for seed, values in enumerate(arrays)]


@pytest.mark.parametrize(("of_seeds", "of_examples"), [(0.0, 0.3), (0.05, 0.0), (0.02, 0.3)])
def test_the_error_over_seeds_is_that_of_repeated_experiments(
    tmp_path: Path, of_seeds: float, of_examples: float
) -> None:
    """Of 400 experiments with a true difference of 0 about 5 % are significant, however the variance is shared."""
    rng, count, found = np.random.default_rng(3), 50, []
    for experiment in range(400):
        examples = of_examples * rng.standard_normal(count)  # shared by the seeds, as a test set is
        others = [rng.random(count) for _ in range(3)]
        ones = [other + examples + of_seeds * rng.standard_normal() for other in others]
        sides = [seeds(tmp_path / f"{experiment}-{side}", "scores", each) for side, each in enumerate((ones, others))]
        found.append(difference(*sides))
        assert found[-1].value == pytest.approx(100 * np.mean(np.subtract(ones, others)))
    leads, errors, noise, p_values = np.array(found).T
    assert ((abs(leads) > noise) == (p_values < 0.05)).all()
    assert 0.005 < (p_values < 0.05).mean() < 0.09
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(leads), rel=0.15)


def test_replicates_are_averaged_over_seeds(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ones, others = rng.random((3, 200)), rng.random((3, 200))
    sides = [seeds(tmp_path / name, "replicates", list(arrays)) for name, arrays in (("a", ones), ("b", others))]
    leads = 100 * (ones - others).mean(1)
    expected = np.hypot((ones - others).mean(0).std(ddof=1), leads.std(ddof=1) / 3**0.5)
    assert difference(*sides).stderr == pytest.approx(expected)


def test_one_seed_meets_each_of_the_other_side(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    one, others = rng.random(60), [rng.random(60) for _ in range(3)]
    alone, several = seeds(tmp_path / "one", "scores", [one]), seeds(tmp_path / "others", "scores", others)
    thrice = seeds(tmp_path / "thrice", "scores", [one] * 3)
    assert difference(alone, several) == difference(thrice, several)


def test_equal_seeds_are_equal(tmp_path: Path) -> None:
    sides = [seeds(tmp_path / name, "scores", [np.full(8, 0.5)] * 3) for name in ("ones", "others")]
    assert difference(*sides) == (0.0, 0.0, 0.0, 1.0)


def test_one_pair_is_the_test_of_its_kind(tmp_path: Path) -> None:
    one, other = pair(tmp_path, "scores", np.r_[np.ones(30), np.zeros(30)], np.r_[np.ones(22), np.zeros(38)])
    found = difference([one], [other])
    assert found == (
        one.value - other.value,
        standard_error(one, other),
        1.96 * standard_error(one, other),
        p_value(one, other),
    )


def test_seeds_without_anything_to_pair_have_an_error_but_no_p_value(tmp_path: Path) -> None:
    ones = seeds(tmp_path / "ones", "predictions", [np.zeros(9)] * 2)
    others = seeds(tmp_path / "others", "predictions", [np.zeros(9), np.full(9, 0.02)])
    found = difference(ones, others)
    assert found.p_value is None
    assert found.stderr == pytest.approx((8 + 1) ** 0.5)  # 2.0 each on one test set; 0 and -2 over seeds
