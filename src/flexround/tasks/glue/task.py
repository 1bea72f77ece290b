"""The eight GLUE tasks, from parquet of the hub or the files of their authors (tables 4, 14, 15, 16)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flexround.errors import NumericalError
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks.glue import files as glue_files
from flexround.tasks.glue.options import METRICS, GlueOptions
from flexround.tasks.protocol import Evaluation, Split, draw_indices
from flexround.tasks.text import encode
from flexround.tasks.text import metrics as text_metrics
from flexround.tasks.text import task as text
from flexround.tasks.text import training as text_training
from flexround.tasks.text.encode import Encoded
from flexround.tasks.text.options import TrainSettings


class Glue(text.TextTask):
    """One GLUE task; sentence pairs are one input."""

    options: GlueOptions

    @property
    def head(self) -> dict[str, Any]:
        """Return a classifier's arguments."""
        return {"head": "classification", "labels": glue_files.LABELS[self.options.name]}

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the training and validation splits."""
        name, read = self.options.name, glue_files.read_released if self.options.released else glue_files.read
        rows = {split: read(sources / self.options.root, name, split) for split in glue_files.SPLITS[name]}
        if self.options.train is not None:
            rows["train"] = [rows["train"][index] for index in draw_indices(len(rows["train"]), self.options.train, 0)]
        return rows

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        """Return one input per row."""
        texts = [[row[column] for row in rows] for column in glue_files.SENTENCES[self.options.name]]
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        return encode.encode(tokenizer, texts[0], texts[1] if len(texts) > 1 else None, self.options.max_length)

    def labels(self, rows: text.Rows) -> np.ndarray:
        """Return the labels (N,): int64 classes, or float32 similarities."""
        return np.array([row["label"] for row in rows], np.float32 if self.options.name == "stsb" else np.int64)

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place; see ``TrainSettings``."""
        checked = validate(TrainSettings, settings, f"train settings of GLUE {self.options.name}")
        encode.check_positions(model, self.options.max_length)
        encode.check_padding(model, tokenizer_files.load(network / TOKENIZER), network / TOKENIZER)
        rows = text.read_rows(data, "train")
        arrays = vars(self.encode(rows, network)) | {"labels": self.labels(rows)}

        def loss(model: Any, batch: dict[str, torch.Tensor], _: torch.Generator) -> torch.Tensor:
            return model(**text.accepted(model, text.arguments(batch)), labels=batch["labels"]).loss

        return {"settings": checked.model_dump(mode="json"), **text_training.train(model, arrays, loss, checked)}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return the task's metrics in percent."""
        encode.check_padding(model, tokenizer_files.load(network / TOKENIZER), network / TOKENIZER)
        metrics = METRICS[self.options.name]
        if split == "heldout":  # only what settings are chosen by
            name, (metric, _) = next(iter(metrics.items()))
            metrics = {name: (metric, "heldout")}
        predicted: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for part in dict.fromkeys(part for _, part in metrics.values()):
            rows = self.split_rows(data, split, part)
            logits = text.run(model, self.encode(rows, network), batch, device, lambda output: [output.logits])[0]
            if np.isnan(logits).any():
                raise NumericalError(f"NaN among the logits of {self.options.name}, split {part}")
            answers = logits[:, 0] if self.options.name == "stsb" else logits.argmax(1)
            predicted[part] = answers, self.labels(rows)
        scored = {name: text_metrics.scored(metric, *predicted[part]) for name, (metric, part) in metrics.items()}
        record = {f"{part}/predicted": answers for part, (answers, _) in predicted.items()}
        record |= {f"{part}/label": labels for part, (_, labels) in predicted.items()}
        return text.evaluation(scored, record)
