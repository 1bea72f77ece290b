"""The real WikiText-2 with a tokenizer of its own, for a GPT-Neo small enough to be trained on it here."""

import sys
from pathlib import Path
from typing import Any

from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "worlds"))
from flexround.artifacts import write_text
from flexround.tasks.language.task import LanguageModelling
from flexround.tasks.text import task as text
from synthetic import tokenizers

VOCABULARY = 2000


class Words(LanguageModelling):
    """WikiText-2; the tokenizer is trained on the training text, where GPT-Neo has its own."""

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train tokenizer and ``model``."""
        lines = [row["text"] for row in text.read_rows(data, "train")]
        trained = tokenizers.train(lines, "bpe", VOCABULARY)
        write_text(network / text.TOKENIZER, trained.to_str(pretty=True))
        return super().finetune(model, data, settings, network)
