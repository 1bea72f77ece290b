"""Exact match and F1 of SQuAD v1.1, by the definition of its official evaluation (Rajpurkar et al. 2016, 6.1)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Score predicted answers; the metrics in percent are 100 x the means.

    Args:
        predictions: one text per question, "" for none.
        answers: the acceptable answers of each question, at least one; the one that fits best counts.

    Returns:
        ``em`` uint8 (N,), 1 where a prediction equals an answer up to case, punctuation, articles and white space,
        and ``f1`` float32 (N,), the overlap of the two bags of words in 0..1.
    """
    em, f1 = [], []
    for prediction, accepted in zip(predictions, answers, strict=True):
        found, right = words(prediction), [words(answer) for answer in accepted]
        em.append(found in right)
        f1.append(max(overlap(found, expected) for expected in right))
    return {"em": np.array(em, np.uint8), "f1": np.array(f1, np.float32)}


def overlap(found: list[str], expected: list[str]) -> float:
    """Return the F1 of the words that two texts share, repeated words counted; 0 where they share none."""
    shared = (Counter(found) & Counter(expected)).total()
    return 2.0 * shared / (len(found) + len(expected)) if shared else 0.0


def words(text: str) -> list[str]:
    """Return the words of a text in lower case without ASCII punctuation and then without articles."""
    return ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
