"""The eight GLUE tasks, from the hub's parquet or the authors' files (tables 4, 14, 15, 16).

Columns and label ids follow the hub's data set ``glue``.
"""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks import encode, text, text_metrics, text_training
from flexround.tasks.encode import Encoded
from flexround.tasks.options import GLUE_METRICS, GlueOptions, TrainSettings
from flexround.tasks.protocol import Evaluation, Split, draw_indices

PAIR = ("sentence1", "sentence2")
SENTENCES: dict[str, tuple[str, ...]] = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "mrpc": PAIR,
    "stsb": PAIR,
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": PAIR,
}
COLUMNS = {name: (*texts, "label", "idx") for name, texts in SENTENCES.items()}
LABELS = dict.fromkeys(SENTENCES, 2) | {"mnli": 3, "stsb": 1}  # 1: a similarity from 0 to 5
SPLITS: dict[str, tuple[str, ...]] = dict.fromkeys(SENTENCES, ("train", "validation"))
SPLITS["mnli"] = ("train", "validation_matched", "validation_mismatched")


class Layout(NamedTuple):
    """A task as its authors released it: each split's tab-separated files, and the columns of a line, from 0."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    label: int
    texts: tuple[int, ...]
    header: int  # lines before a file's first example


LAYOUTS = {
    # This copy has a tenth of the training phrases in dev.tsv, and GLUE's validation split in test.tsv.
    "sst2": Layout(("train.tsv", "dev.tsv"), ("test.tsv",), 1, (0,), 1),
    "mrpc": Layout(("msr_paraphrase_train.txt",), ("msr_paraphrase_test.txt",), 0, (3, 4), 1),
    "stsb": Layout(("sts-train.csv",), ("sts-dev.csv",), 4, (5, 6), 0),
}


def read_released(root: Path, name: str, split: str) -> list[dict[str, Any]]:
    """Read one of the ``SPLITS`` of a task in ``LAYOUTS`` from ``root/NAME``, as rows like the hub's: see ``COLUMNS``.

    A ``label`` is an int from 0; STS-B's is a float from 0 to 5.
    """
    layout, number = LAYOUTS[name], float if name == "stsb" else int
    rows: list[dict[str, Any]] = []
    for file in layout.train if split == "train" else layout.validation:
        for line in itertools.islice(text.lines(root / name / file), layout.header, None):
            fields = line.rstrip("\r\n").split("\t")  # pandas would read an absent field as an empty one
            texts = {column: fields[place] for column, place in zip(SENTENCES[name], layout.texts, strict=True)}
            rows.append(texts | {"label": number(fields[layout.label]), "idx": len(rows)})
    return rows


class Glue(text.TextTask):
    """One GLUE task; sentence pairs are one input."""

    options: GlueOptions

    @property
    def head(self) -> dict[str, Any]:
        return {"head": "classification", "labels": LABELS[self.options.name]}

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the training and validation splits."""
        name, root = self.options.name, sources / self.options.root
        if self.options.released:
            rows = {split: read_released(root, name, split) for split in SPLITS[name]}
        else:
            rows = {split: text.table(root / name, split, COLUMNS[name]) for split in SPLITS[name]}
        if self.options.train is not None:
            rows["train"] = [rows["train"][index] for index in draw_indices(len(rows["train"]), self.options.train, 0)]
        return rows

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        texts = [[row[column] for row in rows] for column in SENTENCES[self.options.name]]
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        return encode.encode(tokenizer, texts[0], texts[1] if len(texts) > 1 else None, self.options.max_length)

    def labels(self, rows: text.Rows) -> np.ndarray:
        """Return the labels (N,): int64 classes, or float32 similarities."""
        return np.array([row["label"] for row in rows], np.float32 if self.options.name == "stsb" else np.int64)

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        checked = validate(TrainSettings, settings, f"train settings of GLUE {self.options.name}")
        encode.check_positions(model, self.options.max_length)
        encode.pad_alike(model, tokenizer_files.load(network / TOKENIZER))
        rows = text.read_rows(data, "train")
        arrays = vars(self.encode(rows, network)) | {"labels": self.labels(rows)}

        def loss(model: Any, batch: dict[str, torch.Tensor], _: torch.Generator) -> torch.Tensor:
            return model(**text.accepted(model, text.arguments(batch)), labels=batch["labels"]).loss

        return {"settings": checked.model_dump(mode="json"), **text_training.train(model, arrays, loss, checked)}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        encode.pad_alike(model, tokenizer_files.load(network / TOKENIZER))
        metrics = GLUE_METRICS[self.options.name]
        if split == "heldout":  # only the metric that selects settings
            name, (metric, _) = next(iter(metrics.items()))
            metrics = {name: (metric, "heldout")}
        predicted: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for part in dict.fromkeys(part for _, part in metrics.values()):
            rows = self.split_rows(data, split, part)
            logits = text.run(model, self.encode(rows, network), batch, device, lambda output: [output.logits])[0]
            answers = logits[:, 0] if self.options.name == "stsb" else logits.argmax(1)
            predicted[part] = answers, self.labels(rows)
        scored = {name: text_metrics.scored(metric, *predicted[part]) for name, (metric, part) in metrics.items()}
        record = {f"{part}/predicted": answers for part, (answers, _) in predicted.items()}
        record |= {f"{part}/label": labels for part, (_, labels) in predicted.items()}
        return text.evaluation(scored, record)
