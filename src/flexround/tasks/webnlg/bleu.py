"""BLEU of WebNLG as microsoft/LoRA scores it: post-processed sentences, six references each (table 6).

The score is sacrebleu's with the tokenizer 13a and no smoothing, which equals ``multi-bleu-detok.perl``. It is no mean
over sentences, but a function of sums of counts, so that resamples of the sentences cost a matrix product.
"""

import re
from collections.abc import Sequence

import numpy as np
import sacrebleu
from sacrebleu.metrics import BLEU

from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.tasks.text.metrics import REPLICATES, Scored, resampled

REFERENCES = 6
ORDERS = 4  # longest n-gram


def scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]], seen: np.ndarray) -> dict[str, Scored]:
    """Score generated texts.

    Args:
        hypotheses: one generated text per context, with or without what follows its end.
        references: the sentences of each context.
        seen: (N,) bool, whether the context's category is one of the training set's.

    Returns:
        BLEU in percent as ``unseen``, ``seen`` and ``all``; a part without contexts is left out. Resample r has the
        same contexts for every run on N of them.

    Raises:
        InputError: a context with no or an empty reference, no hypothesis with any word.
    """
    texts = [post_process(text) for text in hypotheses]
    expected = [six([post_process(text) for text in sentences]) for sentences in references]
    if lacking := [index for index, sentences in enumerate(expected) if not all(sentences)]:
        raise InputError(f"BLEU: no or an empty reference for {len(lacking)} contexts, at positions {lacking[:10]}")
    if not any(texts):
        raise InputError(f"BLEU: empty generation, none of the {len(texts)} texts has a word; look at the checkpoint")
    parts = {"unseen": ~seen, "seen": seen, "all": np.ones(len(seen), bool)}
    counts = statistics(texts, expected)
    chosen = {name: np.flatnonzero(part) for name, part in parts.items() if part.any()}
    return {
        name: resampled(
            corpus_bleu([texts[i] for i in rows], [expected[i] for i in rows]), len(rows), replicates(counts[rows])
        )
        for name, rows in chosen.items()
    }


def post_process(text: str) -> str:
    """Cut a text at its end or at a blank line, lower the case, and put a space on either side of all punctuation.

    Source: microsoft/LoRA, examples/NLG/src/gpt2_decode.py with ``--tokenize --lower``.
    """
    sentence = text.split("<|endoftext|>")[0].split("\n\n")[0]
    return " ".join(re.sub(r"(\W)", r" \1 ", sentence.lower()).split())


def six(references: Sequence[str]) -> list[str]:
    """Return exactly ``REFERENCES`` references: the first ones, or filled up with the first (``""`` where none is)."""
    first = references[0] if references else ""
    return [*references, *[first] * REFERENCES][:REFERENCES]


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return sacrebleu's score in percent of N texts with as many references each."""
    streams = list(zip(*references, strict=True))
    return sacrebleu.corpus_bleu(hypotheses, streams, smooth_method="none", force=True, tokenize="13a").score


def statistics(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return what BLEU needs to know of each text: int64 (N, 2 + 2 * ``ORDERS``).

    The columns are the length of the text and of the reference closest to it, then, for n = 1 to ``ORDERS``, how many
    n-grams match a reference, then how many there are.
    """
    # effective_order only spares a warning for each text: it changes scores, which are not used, but no counts.
    metric = BLEU(tokenize="13a", smooth_method="none", force=True, effective_order=True)
    scored = [metric.sentence_score(text, expected) for text, expected in zip(hypotheses, references, strict=True)]
    return np.array([[each.sys_len, each.ref_len, *each.counts, *each.totals] for each in scored], np.int64)


def from_statistics(sums: np.ndarray) -> np.ndarray:
    """Return BLEU in percent from sums of statistics (..., 2 + 2 * ``ORDERS``): geometric mean x brevity penalty.

    Papineni et al. 2002, section 2.3; 0 where no n-gram of some length matches.
    """
    lengths, closest = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    precisions = np.prod(matches / np.maximum(totals, 1), axis=-1)  # 0 where there are no n-grams
    return 100 * precisions ** (1 / ORDERS) * np.exp(np.minimum(0, 1 - closest / np.maximum(lengths, 1)))


def replicates(counts: np.ndarray) -> np.ndarray:
    """Return BLEU in percent of bootstrap resamples of texts from their ``statistics``: float64 (``REPLICATES``,).

    Resample r has the same texts for every run on N of them.
    """
    size = len(counts)
    drawn = np.random.default_rng(derive("bootstrap", size)).multinomial(size, np.full(size, 1 / size), REPLICATES)
    return from_statistics(drawn @ counts)
