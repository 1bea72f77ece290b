"""SQuAD v1.1: exact match and F1 of answer spans (tables 12 and 13)."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks.protocol import Evaluation, Split
from flexround.tasks.squad import files as squad_files
from flexround.tasks.squad import spans
from flexround.tasks.squad.options import SquadOptions
from flexround.tasks.text import encode
from flexround.tasks.text import metrics as text_metrics
from flexround.tasks.text import task as text
from flexround.tasks.text import training as text_training
from flexround.tasks.text.encode import Encoded
from flexround.tasks.text.options import TrainSettings

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Squad(text.TextTask):
    """Extractive question answering."""

    options: SquadOptions
    head = {"head": "span"}

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read both splits."""
        return {split: squad_files.read(sources / self.options.root, split) for split in ("train", "validation")}

    def features(self, rows: text.Rows, network: Path) -> spans.Features:
        """Return the windows of all rows."""
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        return spans.features(tokenizer, rows, self.options.max_length, self.options.doc_stride)

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        """Return the first window of each row: as many calibration inputs as samples."""
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
        """Return F1 and exact match in percent."""
        rows = self.split_rows(data, split)
        windows = self.features(rows, network)

        def padded(output: Any) -> list[torch.Tensor]:
            logits, width = (output.start_logits, output.end_logits), self.options.max_length
            return [functional.pad(each, (0, width - each.shape[1]), value=-math.inf) for each in logits]

        starts, ends = text.run(model, windows.inputs, batch, device, padded)
        contexts = [row["context"] for row in rows]
        limits = self.options.n_best, self.options.max_answer_length
        answers = spans.predictions(windows, starts, ends, contexts, *limits)
        scores = scores_of(answers, [row["answers"]["text"] for row in rows])
        scored = {name: text_metrics.averaged(scores[name]) for name in ("f1", "em")}
        record = np.frombuffer("\n".join(answers).encode(), np.uint8)
        return text.evaluation(scored, {f"{split}/answers": record})


def scores_of(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Score predicted answers by the official evaluation of SQuAD v1.1 (Rajpurkar et al. 2016, 6.1).

    The metrics in percent are 100 x the means.

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
