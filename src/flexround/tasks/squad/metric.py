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
    pairs = list(zip(predictions, answers, strict=True))
    em = [max(exact_match(prediction, answer) for answer in accepted) for prediction, accepted in pairs]
    overlaps = [max(f1(prediction, answer) for answer in accepted) for prediction, accepted in pairs]
    return {"em": np.array(em, np.uint8), "f1": np.array(overlaps, np.float32)}


def exact_match(prediction: str, answer: str) -> bool:
    """Return whether two texts are equal once normalised."""
    return normalise(prediction) == normalise(answer)


def f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words that two normalised texts share, repeated words counted; 0 where they share none."""
    predicted, expected = normalise(prediction).split(), normalise(answer).split()
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2.0 * shared / (len(predicted) + len(expected)) if shared else 0.0


def normalise(text: str) -> str:
    """Lower the case, drop ASCII punctuation, then articles, and leave one space between words."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())
