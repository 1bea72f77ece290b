"""Common-sense reasoning and WikiText-2 perplexity on files of git repositories, calibrated on a sample of C4."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from flexround.machine.seeding import derive
from flexround.tasks.commonsense import files as choice_files
from flexround.tasks.commonsense.choices import KINDS
from flexround.tasks.commonsense.options import PosedOptions
from flexround.tasks.commonsense.task import Commonsense
from flexround.tasks.language.task import text_losses
from flexround.tasks.text import files as text_files
from flexround.tasks.text import task as text

TEST = "wikitext2-raw/wiki.test.raw"
C4 = "c4-sample/c4.utf8"  # a document a line


class PosedCommonsense(Commonsense):
    """Accuracies on some questions of seven data sets, and the perplexity ``ppl`` of WikiText-2's test text.

    The text is tokenized as a whole, and its first blocks are evaluated. There are no few-shot examples.
    """

    options: PosedOptions

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read random questions, the same each time; WikiText-2's ``test`` text as one row; documents as ``train``."""
        made: dict[str, text.Rows] = {}
        for name in KINDS:
            questions = choice_files.read_posed(sources / self.options.root, name)
            order = np.random.default_rng(derive(f"questions of {name}")).permutation(len(questions))
            made[name] = [questions[index] for index in order[: self.options.questions]]
        test, train = (  # one copy of WikiText-2 has the line ends of Windows
            "".join(text_files.lines(sources / self.options.root / path)).replace("\r\n", "\n") for path in (TEST, C4)
        )
        made["train"] = [{"text": line} for line in train.split("\n") if line.strip()]
        return made | {"test": [{"text": test}]}

    def _losses(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, tokenizer: Tokenizer
    ) -> dict[str, np.ndarray]:
        """Return the blocks' mean losses in nats, float64 (N,)."""
        (row,) = text.read_rows(data, "test")
        size, first, where = self.options.test_block, self.options.test_blocks, f"{data}, test text of WikiText-2"
        return {"ppl": text_losses(model, [row["text"]], tokenizer, size, device, batch, where, first)}
