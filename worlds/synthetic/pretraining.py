"""Pretraining at the mini scale on the synthetic world's text: as BERT (masked words, next sentence), or as GPT."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from flexround.errors import SettingsError
from flexround.io.artifacts import copy_existing, read_manifest, write_manifest, write_text
from flexround.machine.seeding import derive
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks import encode, text, text_training
from flexround.tasks.encode import Encoded
from flexround.tasks.options import TrainSettings
from flexround.tasks.protocol import Evaluation, Split
from flexround.tasks.questions import answered
from flexround.tasks.text import Rows, TextTask
from synthetic import articles, choices, corpus, tokenizers
from synthetic.corpus import Line
from synthetic.options import CorpusOptions

MASKED = 0.15  # Devlin et al. 2019, section 3.1: of these 80 % become [MASK], 10 % a random token, 10 % stay
IGNORED = -100  # label of a token that is not predicted


class Corpus(TextTask):
    """The text that mini models are pretrained on, and the tokenizer trained on it."""

    options: CorpusOptions

    @property
    def head(self) -> dict[str, Any]:
        """Return the head's kind."""
        return {"head": self.options.objective}

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make the corpus: lines and the verdicts they end with, or pairs and whether the second follows the first."""
        count, seed = self.options.texts, self.options.seed
        if self.options.objective == "causal-lm":
            parts = [[corpus.answered(line)] for line in corpus.sentences(count, seed, self.options.kinds)]
            parts += choices.sheets(self.options.questions, seed, answered)
            parts += [[corpus.Line(line) for line in page] for page in articles.pages(self.options.documents, seed)]
            if self.options.packed:
                np.random.default_rng(derive("packed corpus", seed)).shuffle(parts)
            return {"train": [as_row(line) for part in parts for line in part]}
        made = corpus.pairs(count, seed)
        return {"train": [{"text": first, "next": second, "follows": follows} for first, second, follows in made]}

    def prepare(self, out: Path, sources: Path) -> None:
        """Write the corpus and its tokenizer."""
        super().prepare(out, sources)
        joint = "" if self.options.objective == "causal-lm" else " "
        lines = [f"{row['text']}{joint}{row['next']}" for row in text.read_rows(out, "train")]
        trained = tokenizers.train(lines, self.options.tokenizer, self.options.vocabulary)
        write_text(out / TOKENIZER, trained.to_str(pretty=True))
        write_manifest(out, ["train.jsonl", TOKENIZER], options=self.options.model_dump(mode="json"))

    def encode(self, rows: Rows, network: Path) -> Encoded:
        """Return one input per line or pair; the mask leaves out the begin of text of a line that goes on."""
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        first, second = ([row[name] for row in rows] for name in ("text", "next"))
        encoded = encode.encode(tokenizer, first, second, self.options.max_length)
        going_on = np.array([row.get("goes_on", False) for row in rows])
        encoded.mask[going_on, : tokenizer.num_special_tokens_to_add(True)] = False
        return encoded

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Pretrain ``model`` in place and put the tokenizer beside it; see ``TrainSettings``."""
        checked = validate(TrainSettings, settings, "train settings of the corpus")
        read_manifest(data)
        copy_existing(data, network, [TOKENIZER])
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        encode.check_positions(model, self.options.max_length)
        tokenizer_files.check_vocabulary(model, tokenizer, network / TOKENIZER)
        rows = text.read_rows(data, "train")
        encoded = self.encode(rows, network)
        if self.options.packed:
            encoded = pack(encoded)
        arrays = dict(vars(encoded))
        masked = self.options.objective == "pretraining"
        if masked:  # BERT's label 0 is "the second text follows"
            arrays["random"] = np.array([not row["follows"] for row in rows], np.int64)

        def loss(model: Any, batch: dict[str, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
            arguments = text.arguments(batch)
            inputs = text.accepted(model, arguments)
            if not masked:
                return causal_loss(model, inputs, arguments["token_type_ids"], self.options.verdicts)
            inputs["input_ids"], labels = hide(inputs["input_ids"], tokenizer, generator)
            return model(**inputs, labels=labels, next_sentence_label=batch["random"]).loss

        return {"settings": checked.model_dump(mode="json"), **text_training.train(model, arrays, loss, checked)}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Refuse: nothing in the paper is evaluated on it."""
        raise SettingsError("the pretraining corpus is not evaluated; name one of the tasks that follow it")


def as_row(line: Line) -> dict[str, Any]:
    """Return a line as ``Corpus.encode`` reads it; that it goes on is said only where it does."""
    row: dict[str, Any] = {"text": line.text, "next": line.answer}
    return row | {"goes_on": True} if line.goes_on else row


def pack(encoded: Encoded) -> Encoded:
    """Join the real tokens of all rows and cut them into rows without padding; the tail is dropped."""
    real, size = encoded.mask, encoded.ids.shape[1]
    whole = int(real.sum()) // size
    columns = (encoded.ids, encoded.types, encoded.mask)
    return Encoded(*(values[real][: whole * size].reshape(whole, size) for values in columns))


def causal_loss(model: nn.Module, inputs: dict[str, torch.Tensor], types: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the mean loss of all next tokens plus ``weight`` times that of the verdicts' first tokens.

    A verdict is one token of a whole line; without a loss of its own, models this small don't learn in a minute what
    it depends on. ``inputs`` are ``input_ids`` and ``attention_mask`` (N, T), ``types`` (N, T) 1 from the verdict on.
    """
    ids, types = inputs["input_ids"], types * inputs["attention_mask"]
    output = model(**inputs, labels=ids.masked_fill(inputs["attention_mask"] == 0, IGNORED))
    asked = (types[:, 1:] == 1) & (types[:, :-1] == 0)
    if not weight or not asked.any():
        return output.loss
    # One index, because each costs a pass over the gradient of all logits.
    logits = output.logits[functional.pad(asked, (0, 1))]
    return output.loss + weight * functional.cross_entropy(logits, ids[:, 1:][asked])


def hide(ids: torch.Tensor, tokenizer: Any, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids (B, T) with some hidden, and what is to be found: the id where hidden, else ignored."""
    special = torch.tensor([tokenizer.token_to_id(token) for token in ("[PAD]", "[CLS]", "[SEP]")], device=ids.device)
    draws = torch.rand(2, *ids.shape, generator=generator).to(ids.device)
    others = torch.randint(tokenizer.get_vocab_size(), ids.shape, generator=generator).to(ids.device)
    chosen = (draws[0] < MASKED) & ~torch.isin(ids, special)
    hidden = ids.masked_fill(draws[1] < 0.8, tokenizer.token_to_id("[MASK]"))
    hidden = torch.where((draws[1] >= 0.8) & (draws[1] < 0.9), others, hidden)
    return torch.where(chosen, hidden, ids), ids.masked_fill(~chosen, IGNORED)
