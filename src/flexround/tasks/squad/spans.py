"""Extractive question answering: windows over long contexts, and answers from the logits of their tokens.

The semantics of Hugging Face's question-answering example (run_qa.py, utils_qa.py): question first, the context cut
into overlapping windows, the answer the best span among the best starts and ends. One difference: an answer that
starts at the last token of a window gets that token as its start, where the example runs on into the special tokens.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from flexround.errors import InputError, NumericalError
from flexround.tasks.text.encode import Encoded
from flexround.tasks.text.task import Rows

CHUNK = 256  # questions whose encodings, far larger than the arrays made of them, are held at once


class Features(NamedTuple):
    """F windows of T tokens, those of one example next to each other.

    Attributes:
        inputs: types are 0 for the question and 1 for the context.
        example: int32 (F,), the question's position.
        offsets: int32 (F, T, 2), first character of a context token in its context and the one after its last; -1
            outside the context.
        starts: int32 (F,), the token in which the answer starts; 0, [CLS], where the window doesn't hold all of it.
        ends: int32 (F,), the token in which the answer ends, likewise.
    """

    inputs: Encoded
    example: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def features(tokenizer: Tokenizer, rows: Rows, max_length: int, doc_stride: int) -> Features:
    """Cut ``[CLS] question [SEP] context [SEP]`` into windows.

    White space before a question is dropped. A row's first answer is the one to learn. The tokenizer, whose
    post-processor adds the special tokens, is left as it is. Consecutive windows of an example share ``doc_stride``
    tokens of the context.

    Raises:
        InputError: no padding token, or a question that leaves no room for its context.
    """
    parts = list(_windows(tokenizer, rows, max_length, doc_stride))
    ids, types, mask, example, offsets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    answers = [(row["answers"]["answer_start"][0], row["answers"]["text"][0]) for row in rows]
    starts, ends = _positions(offsets, np.array([(start, start + len(answer)) for start, answer in answers])[example])
    return Features(Encoded(ids, types, mask), example, offsets, starts, ends)


def _positions(offsets: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens in which answers, int (F, 2), start and end as in ``Features``, whose ``offsets`` it takes."""
    context = offsets[..., 0] >= 0
    before = context & (offsets[..., 0] <= answers[:, :1])
    after = context & (offsets[..., 1] >= answers[:, 1:])
    inside = before.any(axis=1) & after.any(axis=1)
    starts = offsets.shape[1] - 1 - before[:, ::-1].argmax(axis=1)
    return np.where(inside, starts, 0).astype(np.int32), np.where(inside, after.argmax(axis=1), 0).astype(np.int32)


def predictions(
    windows: Features,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    contexts: Sequence[str],
    n_best: int,
    max_answer: int,
) -> list[str]:
    """Return the answer to each question: the span of the highest start + end logit, float (F, T), over its windows.

    ``n_best`` starts and ends are considered in each window, wherever they are; an answer has up to ``max_answer``
    tokens. It is "" for a question without any allowed span.

    Raises:
        NumericalError: NaN among the logits.
    """
    answers = [""] * len(contexts)
    best = np.full(len(contexts), -np.inf)
    for offsets, example, opening, closing in zip(
        windows.offsets, windows.example, start_logits, end_logits, strict=True
    ):
        if np.isnan(opening).any() or np.isnan(closing).any():
            raise NumericalError(f"NaN among the logits of question {example}; the model has diverged")
        starts, ends = (np.argsort(-logits, kind="stable")[:n_best] for logits in (opening, closing))
        first, last = offsets[starts, 0, None], offsets[ends, 1]
        length = ends - starts[:, None] + 1
        allowed = (first >= 0) & (last >= 0) & (length >= 1) & (length <= max_answer)
        scores = np.where(allowed, opening[starts, None] + closing[ends], -np.inf)
        start, end = np.unravel_index(scores.argmax(), scores.shape)
        if scores[start, end] > best[example]:
            best[example] = scores[start, end]
            answers[example] = contexts[example][offsets[starts[start], 0] : offsets[ends[end], 1]]
    return answers


def _windows(
    tokenizer: Tokenizer, rows: Rows, max_length: int, doc_stride: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield ids, types, mask, example and offsets of ``Features`` for ``CHUNK`` questions at a time."""
    pad = tokenizer.token_to_id("[PAD]")
    if pad is None:
        raise InputError("the tokenizer has no [PAD] token; use the one that belongs to the BERT model")
    whole, cutting = (Tokenizer.from_str(tokenizer.to_str()) for _ in range(2))
    whole.no_truncation()
    whole.no_padding()
    cutting.enable_truncation(max_length, stride=doc_stride, strategy="only_second")
    cutting.enable_padding(length=max_length, pad_id=pad)
    for first in range(0, len(rows), CHUNK):
        chunk = rows[first : first + CHUNK]
        pairs = [(row["question"].lstrip(), row["context"]) for row in chunk]
        for row, pair in zip(chunk, pairs, strict=True):
            _check_room(whole, row["id"], *pair, max_length, doc_stride)
        groups = [[encoding, *encoding.overflowing] for encoding in cutting.encode_batch(pairs)]
        example = np.repeat(np.arange(first, first + len(chunk), dtype=np.int32), [len(group) for group in groups])
        windows = [window for group in groups for window in group]
        context = np.array([[sequence == 1 for sequence in window.sequence_ids] for window in windows])
        offsets = np.where(context[..., None], np.array([window.offsets for window in windows], np.int32), np.int32(-1))
        columns = (("ids", np.int32), ("type_ids", np.int8), ("attention_mask", bool))
        ids, types, mask = (np.array([getattr(each, name) for each in windows], kind) for name, kind in columns)
        yield ids, types, mask, example, offsets


def _check_room(tokenizer: Tokenizer, name: str, question: str, context: str, max_length: int, doc_stride: int) -> None:
    """Refuse a question beside which the windows of a long context could not move on."""
    tokens = len(tokenizer.encode(question, add_special_tokens=False))
    room = max_length - tokenizer.num_special_tokens_to_add(is_pair=True) - tokens
    if room <= doc_stride and len(tokenizer.encode(question, context)) > max_length:
        raise InputError(
            f"question {name}: its {tokens} tokens leave {room} of max_length={max_length} for the context, "
            f"which must be more than doc_stride={doc_stride}; raise the one, lower the other or drop the question"
        )
