"""Common-sense reasoning and WikiText-2 perplexity on files that anybody may copy, calibrated on text of C4."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.tasks.commonsense import posed_files
from flexround.tasks.commonsense.choices import KINDS, Row
from flexround.tasks.commonsense.options import PosedOptions
from flexround.tasks.commonsense.task import Commonsense
from flexround.tasks.language import task as language_modelling
from flexround.tasks.text import files as text_files
from flexround.tasks.text import task as text

TEST = "wikitext2-raw/wiki.test.raw"
C4 = "c4-sample/c4.utf8"  # a document a line


class PosedCommonsense(Commonsense):
    """Accuracies on some questions of the seven data sets, and the perplexity of the beginning of WikiText-2's test text.

    Metrics: ``NAME`` for the data sets of ``KINDS``, in the paper's choice of accuracy, without few-shot examples;
    ``ppl`` on the first blocks of the text, which is tokenized as a whole.
    """

    options: PosedOptions

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the questions, ``NAME``, WikiText-2's ``test`` text as one row, and the documents of C4 as ``train``."""
        root, count = sources / self.options.root, self.options.questions
        made: dict[str, text.Rows] = {name: drawn(posed_files.read(root, name), name, count) for name in KINDS}
        made["test"] = [{"text": _text(root / TEST)}]
        made["train"] = [{"text": line} for line in _text(root / C4).split("\n") if line.strip()]
        return made

    def _losses(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, tokenizer: Tokenizer
    ) -> dict[str, np.ndarray]:
        """Return the blocks' mean losses in nats, float64 (N,)."""
        options, texts = self.options, language_modelling.read_texts(data, "test")
        where = f"{data}, test text of WikiText-2"
        found = language_modelling.text_losses(
            model, texts, tokenizer, options.test_block, device, batch, where, options.test_blocks
        )
        return {"ppl": found}


def drawn(rows: list[Row], name: str, count: int) -> list[Row]:
    """Return ``count`` random questions of a data set, or all where there are fewer: the same for every network."""
    order = np.random.default_rng(derive(f"questions of {name}")).permutation(len(rows))
    return [rows[index] for index in order[:count]]


def _text(path: Path) -> str:
    """Return the text of a file."""
    found = text_files.decoded(path)
    if not found.strip():
        raise InputError(f"{path}: no text; fetch it again")
    return found
