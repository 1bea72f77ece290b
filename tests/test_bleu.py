"""BLEU against values worked out by hand and sacrebleu, its statistics and resamples."""

import math

import numpy as np
import pytest

from flexround.tasks import webnlg as bleu


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    words = list("abcdefgh,.")
    references = [[" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(6)] for _ in range(50)]
    hypotheses = [" ".join([*found[0].split()[:-1], "a"]) for found in references]
    return hypotheses, references


@pytest.mark.parametrize(
    ("hypothesis", "references", "expected"),
    [
        ("a b c d", ["a b c d e"], 100 * math.exp(1 - 5 / 4)),  # too short
        ("a b x y", ["a b", "x y"], 0),  # nothing of length 3 matches
        ("A b c d", ["a b c d"], 0),  # case counts
    ],
)
def test_values_by_hand(hypothesis, references, expected):
    assert bleu.corpus_bleu([hypothesis], [references]) == pytest.approx(expected, rel=1e-12)
    assert bleu.from_statistics(bleu.statistics([hypothesis], [references])[0]) == pytest.approx(expected, rel=1e-12)


def test_statistics_give_the_score_of_sacrebleu_on_any_resample(corpus):
    counts = bleu.statistics(*corpus)
    assert bleu.from_statistics(counts.sum(0)) == pytest.approx(bleu.corpus_bleu(*corpus), rel=1e-12)
    drawn = np.random.default_rng(1).integers(50, size=50)
    repeated = bleu.corpus_bleu(*([column[index] for index in drawn] for column in corpus))
    weights = np.bincount(drawn, minlength=50)
    assert bleu.from_statistics(np.stack([weights, 2 * weights]) @ counts) == pytest.approx([repeated] * 2, rel=1e-12)


def test_spread_of_the_resamples_which_all_runs_share(corpus):
    scored, counts = bleu.scores(*corpus, np.ones(50, bool))["all"], bleu.statistics(*corpus)
    assert scored.replicates.shape == (1000,)
    assert scored.scores is None
    left_out = bleu.from_statistics(counts.sum(0) - counts)  # jackknife
    assert scored.stderr == pytest.approx(math.sqrt(49 * np.var(left_out)), rel=0.15)
    assert scored.replicates.mean() == pytest.approx(scored.value, abs=scored.stderr)
    counts[7, 2:6] = counts[7, 6:]  # one text is now right
    gains = bleu.replicates(counts) - scored.replicates
    assert (gains >= 0).all()
    assert np.mean(gains == 0) == pytest.approx(0.98**50, abs=0.05)  # the resamples without that text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' The A_b "is" 3.5m\tlong.', 'the a_b " is " 3 . 5m long .'),
        ("One.<|endoftext|> Two.", "one ."),
        ("One.\nTwo.\n\nThree.", "one . two ."),
        ("É-é", "é - é"),
        ("\n\nOne.", ""),
    ],
)
def test_post_processing(text, expected):
    assert bleu.post_process(text) == expected


def test_seen_and_unseen_are_scored_apart():
    texts = ["A b, c d.<|endoftext|>x", "a b c d e", "no"]
    references = [["a B, c d."], ["x", "a b c d f"], ["yes", "well"]]
    found = bleu.scores(texts, references, np.array([True, False, False]))
    assert list(found) == ["unseen", "seen", "all"]
    assert found["seen"].value == pytest.approx(100)
    precisions = [4 / 6 * 3 / 4 * 2 / 3 * 1 / 2, (4 + 6) / 12 * (3 + 5) / 9 * (2 + 4) / 7 * (1 + 3) / 5]
    assert [found[name].value for name in ("unseen", "all")] == pytest.approx([100 * p**0.25 for p in precisions])
    assert list(bleu.scores(texts, references, np.ones(3, bool))) == ["seen", "all"]
    assert (bleu.six(list("abcdefgh")), bleu.six(["a", "b"])) == (list("abcdef"), list("abaaaa"))
