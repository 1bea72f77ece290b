"""SQuAD v1.1: exact match and F1 of answer spans (tables 12 and 13).

The semantics follow Hugging Face's question-answering example (run_qa.py, utils_qa.py): question first, context cut
into overlapping windows, the best span among the best starts and ends as the answer. One difference: if an answer
starts at a window's last token, its start is this token; the example runs on into the special tokens.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks import encode, text, text_metrics, text_training
from flexround.tasks.encode import Encoded
from flexround.tasks.options import SquadOptions, TrainSettings
from flexround.tasks.protocol import Evaluation, Split

COLUMNS = ("id", "title", "context", "question", "answers")  # answers: texts, and their offsets in characters
CHUNK = 256  # questions encoded at once: their encodings are far larger than the resulting arrays
ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Features(NamedTuple):
    """F windows of T tokens; the windows of one example are consecutive.

    Attributes:
        inputs: encoded windows, with types 0 for the question and 1 for the context.
        example: int32 (F,), the question's position.
        offsets: int32 (F, T, 2), start and end (exclusive) of each context token in its context, in characters; -1
            outside the context.
        starts: int32 (F,), the answer's first token; 0, [CLS], if the window doesn't contain the whole answer.
        ends: int32 (F,), the answer's last token, likewise.
    """

    inputs: Encoded
    example: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def features(tokenizer: Tokenizer, rows: text.Rows, max_length: int, doc_stride: int) -> Features:
    """Cut ``[CLS] question [SEP] context [SEP]`` into windows.

    White space before a question is dropped. The training target is a row's first answer. The tokenizer, whose
    post-processor adds the special tokens, keeps truncating and padding afterwards. An example's consecutive windows
    share ``doc_stride`` tokens of the context.
    """
    parts = list(_windows(tokenizer, rows, max_length, doc_stride))
    ids, types, mask, example, offsets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    answers = [(row["answers"]["answer_start"][0], row["answers"]["text"][0]) for row in rows]
    starts, ends = _positions(offsets, np.array([(start, start + len(answer)) for start, answer in answers])[example])
    return Features(Encoded(ids, types, mask), example, offsets, starts, ends)


def _positions(offsets: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``starts`` and ``ends`` of ``Features`` from its ``offsets`` and the answers' characters, int (F, 2)."""
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
    """Return each question's answer: the span with the highest start + end logit, float (F, T), over its windows.

    Each window contributes its ``n_best`` starts and ends, wherever they are. An answer has up to ``max_answer``
    tokens, and is "" if no span is allowed.
    """
    answers = [""] * len(contexts)
    best = np.full(len(contexts), -np.inf)
    for offsets, example, opening, closing in zip(
        windows.offsets, windows.example, start_logits, end_logits, strict=True
    ):
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
    tokenizer: Tokenizer, rows: text.Rows, max_length: int, doc_stride: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the ids, types, mask, example and offsets of ``Features``, ``CHUNK`` questions at a time."""
    tokenizer.enable_truncation(max_length, stride=doc_stride, strategy="only_second")
    tokenizer.enable_padding(length=max_length, pad_id=tokenizer.token_to_id("[PAD]"))
    for first in range(0, len(rows), CHUNK):
        chunk = rows[first : first + CHUNK]
        pairs = [(row["question"].lstrip(), row["context"]) for row in chunk]
        groups = [[encoding, *encoding.overflowing] for encoding in tokenizer.encode_batch(pairs)]
        example = np.repeat(np.arange(first, first + len(chunk), dtype=np.int32), [len(group) for group in groups])
        windows = [window for group in groups for window in group]
        context = np.array([[sequence == 1 for sequence in window.sequence_ids] for window in windows])
        offsets = np.where(context[..., None], np.array([window.offsets for window in windows], np.int32), np.int32(-1))
        columns = (("ids", np.int32), ("type_ids", np.int8), ("attention_mask", bool))
        ids, types, mask = (np.array([getattr(each, name) for each in windows], kind) for name, kind in columns)
        yield ids, types, mask, example, offsets


class Squad(text.TextTask):
    """Extractive question answering."""

    options: SquadOptions
    head = {"head": "span"}

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        folder = sources / self.options.root / "plain_text"
        return {split: text.table(folder, split, COLUMNS) for split in ("train", "validation")}

    def features(self, rows: text.Rows, network: Path) -> Features:
        """Return all rows' windows."""
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        return features(tokenizer, rows, self.options.max_length, self.options.doc_stride)

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        """Return each row's first window, so that each sample is one calibration input."""
        windows = self.features(rows, network)
        first = np.unique(windows.example, return_index=True)[1]
        return Encoded(*(values[first] for values in vars(windows.inputs).values()))

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place on all windows; see ``TrainSettings``."""
        checked = validate(TrainSettings, settings, "train settings of SQuAD")
        encode.check_positions(model, self.options.max_length)
        windows = self.features(text.read_rows(data, "train"), network)
        targets = {name: getattr(windows, name).astype(np.int64) for name in ("starts", "ends")}
        arrays = vars(windows.inputs) | targets

        def loss(model: Any, batch: dict[str, torch.Tensor], _: torch.Generator) -> torch.Tensor:
            inputs = text.accepted(model, text.arguments(batch))
            return model(**inputs, start_positions=batch["starts"], end_positions=batch["ends"]).loss

        return {"settings": checked.model_dump(mode="json"), **text_training.train(model, arrays, loss, checked)}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        rows = self.split_rows(data, split)
        windows = self.features(rows, network)

        def padded(output: Any) -> list[torch.Tensor]:
            logits, width = (output.start_logits, output.end_logits), self.options.max_length
            return [functional.pad(each, (0, width - each.shape[1]), value=-math.inf) for each in logits]

        starts, ends = text.run(model, windows.inputs, batch, device, padded)
        contexts = [row["context"] for row in rows]
        limits = self.options.n_best, self.options.max_answer_length
        answers = predictions(windows, starts, ends, contexts, *limits)
        scores = scores_of(answers, [row["answers"]["text"] for row in rows])
        scored = {name: text_metrics.averaged(scores[name]) for name in ("f1", "em")}
        record = np.frombuffer("\n".join(answers).encode(), np.uint8)
        return text.evaluation(scored, {f"{split}/answers": record})


def scores_of(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Score predicted answers with SQuAD v1.1's official evaluation (Rajpurkar et al. 2016, 6.1).

    The metrics in percent are 100 x the mean scores.

    Args:
        predictions: one text per question, "" for no answer.
        answers: each question's acceptable answers, at least one; the best-matching answer counts.

    Returns:
        ``em`` uint8 (N,), 1 if a prediction equals an answer up to case, punctuation, articles and white space,
        and ``f1`` float32 (N,), the overlap of the two bags of words in 0..1.
    """
    em, f1 = [], []
    for prediction, accepted in zip(predictions, answers, strict=True):
        found, right = words(prediction), [words(answer) for answer in accepted]
        em.append(found in right)
        f1.append(max(overlap(found, expected) for expected in right))
    return {"em": np.array(em, np.uint8), "f1": np.array(f1, np.float32)}


def overlap(found: list[str], expected: list[str]) -> float:
    """Return the F1 of two texts' shared words, counted with repetitions; 0 without shared words."""
    shared = (Counter(found) & Counter(expected)).total()
    return 2.0 * shared / (len(found) + len(expected)) if shared else 0.0


def words(text: str) -> list[str]:
    """Return a text's words in lower case, without ASCII punctuation and then without articles."""
    return ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
