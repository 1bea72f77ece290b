"""GLUE's metrics and their bootstrap against scikit-learn, SciPy and hand-made cases; SQuAD's by its definition."""

import math

import numpy as np
import pytest

from flexround.machine.seeding import derive
from flexround.tasks import text_metrics
from flexround.tasks.squad import scores_of
from flexround.tasks.text_metrics import METRICS, averaged, replicates, scored

LABELS = np.array([1, 1, 1, 0, 0, 0, 0, 1])
PREDICTIONS = np.array([1, 1, 0, 0, 0, 1, 0, 1])  # TP 3, FN 1, FP 1, TN 3


def drawn(name, count=400, seed=0):
    rng = np.random.default_rng(seed)
    if name in ("pearson", "spearman"):
        labels = rng.integers(0, 11, count) / 2  # many ties
        return np.round(labels + rng.normal(0, 1, count), 1), labels
    labels = rng.integers(0, 2, count)
    return np.where(rng.random(count) < 0.8, labels, 1 - labels), labels


@pytest.mark.parametrize(
    ("name", "expected"), [("acc", 75.0), ("f1", 75.0), ("matthews", 100 * (3 * 3 - 1 * 1) / 16), ("pearson", 50.0)]
)
def test_values_by_hand(name, expected):
    assert scored(name, PREDICTIONS, LABELS).value == pytest.approx(expected)


@pytest.mark.parametrize("name", METRICS)
def test_replicates_are_the_metric_on_resamples(name, monkeypatch):
    predictions, labels = drawn(name)
    rng = np.random.default_rng(derive("bootstrap", 400))
    indices = rng.integers(400, size=(20, 400))
    expected = [100 * METRICS[name].value(predictions[row], labels[row]) for row in indices]
    assert np.allclose(replicates(name, predictions, labels, count=20), expected)
    monkeypatch.setattr(text_metrics, "CHUNK", 3 * 400)
    assert np.allclose(replicates(name, predictions, labels, count=20), expected), "chunks do not show"


def test_accuracy_is_a_mean_of_scores_in_double_precision():
    found = scored("acc", PREDICTIONS, LABELS)
    assert found.scores.dtype == np.uint8
    assert found.scores.tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    assert found.stderr == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 7))
    assert found.replicates is None
    overlaps = np.array([1, 0, 2 / 3], np.float32)
    assert averaged(overlaps).value == (100.0 * overlaps.astype(np.float64)).mean()


def test_undefined_correlations_of_resamples_are_zero():
    predictions = np.full(50, 1 / 3)
    predictions[7] = 0.4  # missing from about exp(-1) of the resamples
    found = replicates("pearson", predictions, np.arange(50.0))
    assert np.mean(found == 0.0) == pytest.approx(math.exp(-1), abs=0.06)
    assert np.abs(found).max() < 100.0


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "f1"),
    [
        ("U.S.A", ["USA"], 1, 1.0),  # punctuation joins, it doesn't part
        ("twenty-one", ["twenty one"], 0, 0.0),
        ("anthem", ["them"], 0, 0.0),  # articles are whole words
        ("", ["Denver"], 0, 0.0),
        ("The", ["a"], 1, 0.0),  # nothing is left of either: equal, without a shared word
        ("new new york", ["New York York"], 0, 2 * 2 / (3 + 3)),  # one "new" and one "york" are shared
        ("café", ["CAFÉ"], 1, 1.0),
        ("“x”", ["x"], 0, 0.0),  # ASCII punctuation alone is dropped
        ("“a”", ["“ ”"], 1, 1.0),  # an article leaves a space
    ],
)
def test_squad_by_hand(prediction, answers, em, f1):
    found = scores_of(["", prediction], [["x"], answers])
    assert (found["em"].dtype, found["f1"].dtype) == (np.uint8, np.float32)
    assert found["em"].tolist() == [0, em]
    assert found["f1"].tolist() == pytest.approx([0, f1])


def test_squad_equals_torchmetrics():
    from torchmetrics.functional.text import squad

    rng = np.random.default_rng(0)
    words = ["Bear", "bear", "cat", "the", "An", "dog's", "dogs", "1,000", "-", "cat.", "x  y"]

    def phrase(first):  # never empty once normalised: torchmetrics gives two empty texts a F1 of 1, v1.1 gives 0
        return " ".join([first, *rng.choice(words, rng.integers(0, 5))])

    for case in range(100):
        prediction = phrase(str(rng.choice(words[:3])))
        answers = [phrase(str(rng.choice(words[:3]))) for _ in range(rng.integers(1, 4))]
        expected = squad(
            [{"id": case, "prediction_text": prediction}],
            [{"id": case, "answers": {"text": answers, "answer_start": [0] * len(answers)}}],
        )
        found = scores_of([prediction], [answers])
        assert 100 * found["em"][0] == expected["exact_match"].item(), (prediction, answers)
        assert 100 * found["f1"][0] == pytest.approx(expected["f1"].item()), (prediction, answers)
