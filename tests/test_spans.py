"""Windows over long contexts and answers from logits, by hand on a small WordPiece tokenizer."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from flexround.tasks.squad import Features, features, predictions

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "beyonce", "sang", "play", "##ed", *"abcdefghij", "."]
LIMITS = 20, 30  # best starts and ends, tokens of an answer


def bert(words):
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def row(context, answer="", question="who", name="q1", start=None):
    answers = {"answer_start": [context.index(answer) if start is None else start], "text": [answer]}
    return {"id": name, "question": question, "context": context, "answers": answers}


def ask(context, answer="", question="who", **options):
    return features(bert(WORDS), [row(context, answer, question)], **({"max_length": 8, "doc_stride": 2} | options))


def tokens(ids):
    return [WORDS[index] for index in ids]


def test_windows_overlap_and_only_the_context_is_cut():
    found = ask("a b c d e f g", "c")
    assert [tokens(ids) for ids in found.inputs.ids] == [
        ["[CLS]", "who", "[SEP]", *"abcd", "[SEP]"],
        ["[CLS]", "who", "[SEP]", *"cdef", "[SEP]"],
        ["[CLS]", "who", "[SEP]", *"efg", "[SEP]", "[PAD]"],
    ]
    assert found.inputs.types.tolist() == [[0] * 3 + [1] * 5] * 2 + [[0] * 3 + [1] * 4 + [0]]
    assert found.inputs.mask.tolist() == [[True] * 8] * 2 + [[True] * 7 + [False]]
    none = [-1, -1]
    assert found.offsets[2].tolist() == [none, none, none, [8, 9], [10, 11], [12, 13], none, none]
    assert found.example.tolist() == [0, 0, 0]
    assert found.starts.tolist() == found.ends.tolist() == [5, 3, 0]
    dtypes = (np.int32, np.int8, bool, np.int32, np.int32, np.int32, np.int32)
    assert tuple(array.dtype for array in (*vars(found.inputs).values(), *found[1:])) == dtypes


@pytest.mark.parametrize("context", ["  \t a Beyoncé sang", "é — 😀 a Beyonce\u0301 sang"])
def test_offsets_count_characters_of_the_context_as_given(context):
    found = ask(context, "sang", max_length=12)
    assert tokens(found.inputs.ids[0])[:3] == ["[CLS]", "who", "[SEP]"]
    for word in ("beyonce", "sang"):
        start, end = found.offsets[0, tokens(found.inputs.ids[0]).index(word)]
        assert context[start:end].lower().startswith(word[:6])
    assert context[found.offsets[0, found.starts[0], 0] : found.offsets[0, found.ends[0], 1]] == "sang"


def one_hot(found: Features):
    return tuple(np.eye(found.inputs.ids.shape[1], dtype=np.float32)[where] for where in (found.starts, found.ends))


def search(found, start_logits, end_logits, contexts, n_best, longest):
    """Every pair of the best starts and ends, one after the other."""
    best = [(-np.inf, "")] * len(contexts)
    for window, example in enumerate(found.example):
        for start in np.argsort(start_logits[window])[::-1][:n_best]:
            for end in np.argsort(end_logits[window])[::-1][:n_best]:
                opening, closing = found.offsets[window, start, 0], found.offsets[window, end, 1]
                if opening < 0 or closing < 0 or not 0 <= end - start < longest:
                    continue
                score = start_logits[window, start] + end_logits[window, end]
                best[example] = max(best[example], (score, contexts[example][opening:closing]))
    return [text for _, text in best]


@pytest.mark.parametrize(("n_best", "longest"), [(20, 30), (3, 30), (20, 2), (1, 30)])
def test_predictions_are_those_of_a_search_through_all_pairs(n_best, longest):
    rng = np.random.default_rng(0)
    contexts = [" ".join(rng.choice(list("abcdefghij"), rng.integers(1, 25))) for _ in range(60)]
    found = features(bert(WORDS), [row(context, context[0]) for context in contexts], 12, 3)
    logits = rng.normal(size=(2, *found.inputs.ids.shape)).astype(np.float32)
    expected = search(found, *logits, contexts, n_best, longest)
    assert predictions(found, *logits, contexts, n_best, longest) == expected
    assert ("" in expected) == (n_best < 12)
