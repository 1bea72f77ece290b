"""Language modelling on WikiText-2 and the Penn Treebank (tables 5, 17, 18, 23, 24), with run_clm's semantics.

run_clm is a Hugging Face example script. Rows are tokenized one by one with the tokenizer's special tokens (LLaMA's:
a begin of text), joined without separators, and cut into blocks of equal length. run_clm joins 1000 rows at a time and
drops the tail of each group, as the option ``joined`` does; without this option all rows are joined. A block's labels
are its own ids: its first token is not predicted, and no block sees another.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks import encode, text, text_metrics, text_training
from flexround.tasks.encode import Encoded
from flexround.tasks.options import AdapterTrainSettings, LanguageOptions, StoriesOptions
from flexround.tasks.protocol import Evaluation, Inputs, Split

LOGITS = 2**28  # logits per batch: 1 GiB
UNPREDICTED = -100  # label that PyTorch's cross-entropy ignores by default
CONFIGURATION = "wikitext-2-raw-v1"
VALIDATED = 10  # one line in so many of a text file belongs to the validation split
PTB = {"train": "ptb.train.txt", "validation": "ptb.valid.txt"}
SHARDS = 1024  # number of C4's shards
RELEASED = 0.01  # share of C4's first shard that the authors' code reads
SEPARATOR = "<|endoftext|>"


class LanguageModelling(text.TextTask):
    """The perplexity of a causal language model."""

    options: LanguageOptions  # type: ignore[assignment]
    head = {"head": "causal-lm"}

    @property
    def input_shape(self) -> tuple[int, int]:
        return 2, self.options.block_size

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        root = sources / (self.options.root or self.options.name)
        return {split: read(root, self.options.name, split) for split in ("train", "validation")}

    def parts(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Hold out the first rows, not random rows, so that both parts, int64 (N,), are continuous text."""
        kept, heldout = super().parts(count)
        return np.arange(len(heldout), len(kept) + len(heldout)), np.arange(len(heldout))

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return the training text, uint8 (bytes,), and numbers, int64 (samples,), by which ``inputs`` chooses blocks.

        The blocks depend on the network's tokenizer, which is unknown here. Each block begins at the end of the
        previous block, so the whole text is needed. The choice is still drawn here: one number per sample, and a
        smaller draw is a prefix of a larger draw.
        """
        lines = text.read_lines(data, "train")
        kept, _ = self.parts(len(lines))
        numbers = np.random.default_rng(derive("calibration samples", seed)).integers(2**62, size=samples)
        return text.packed(numbers, [lines[index] for index in kept])

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return random blocks of the training text as int64 (N, 2, T) ids and types, without padding.

        Raises:
            InputError: more samples than blocks.
        """
        encoded = self.encode(text.sampled(samples), network)
        chosen = choose(samples["indices"], len(encoded.ids))
        tokens = np.stack([encoded.ids[chosen], encoded.types[chosen]], axis=1)
        return Inputs(torch.from_numpy(tokens.astype(np.int64)))

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        ids = np.concatenate(list(self.blocks((row["text"] for row in rows), network, self.options.joined)))
        return Encoded(ids, np.zeros(ids.shape, np.int8), np.ones(ids.shape, bool))

    def blocks(self, texts: Iterable[str], network: Path, joined: int | None) -> Iterator[np.ndarray]:
        """Cut texts into blocks with a network's tokenizer: int32 (N, size), see ``encode.blocks``."""
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        return encode.blocks(texts, tokenizer, self.options.block_size, encode.CHUNK, joined)

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place on all blocks; see ``AdapterTrainSettings``."""
        checked = validate(AdapterTrainSettings, settings, f"train settings of {self.options.name}")
        encode.check_positions(model, self.options.block_size)
        tokenizer_files.check_vocabulary(model, tokenizer_files.load(network / TOKENIZER), network / TOKENIZER)
        arrays = {"ids": self.encode(text.read_rows(data, "train"), network).ids}

        def loss(model: Any, batch: dict[str, torch.Tensor], _: torch.Generator) -> torch.Tensor:
            ids = batch["ids"].long()
            return model(input_ids=ids, labels=ids, use_cache=False).loss

        facts = text_training.train_adapters(model, arrays, loss, checked)
        return {"settings": checked.model_dump(mode="json"), **facts}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return the perplexity ``ppl``; its examples are the blocks, and the predictions are their mean losses.

        Ids and logits are in memory for one batch at a time. A batch has fewer blocks than ``batch`` if its logits
        would need too much memory.
        """
        texts, tokenizer = (
            [row["text"] for row in self.split_rows(data, split)],
            tokenizer_files.load(network / TOKENIZER),
        )
        losses = text_losses(model, texts, tokenizer, self.options.block_size, batch, joined=self.options.joined)
        return text.evaluation({"ppl": text_metrics.perplexity(losses)}, {f"{split}/loss": losses})


def choose(numbers: np.ndarray, available: int) -> np.ndarray:
    """Return N different indices below ``available``, chosen by the first N steps of a Fisher-Yates shuffle.

    The ``numbers``, int64 (N,), are uniform random numbers from a range far larger than ``available``.
    """
    if len(numbers) > available:
        raise InputError(f"samples={len(numbers)}: the training set has {available} blocks; lower samples")
    order = np.arange(available)
    for place, number in enumerate(numbers):
        other = place + int(number) % (available - place)
        order[place], order[other] = order[other], order[place]
    return order[: len(numbers)]


def text_losses(
    model: Any,
    texts: Iterable[str],
    tokenizer: Tokenizer,
    size: int,
    batch: int,
    first: int | None = None,
    joined: int | None = None,
) -> np.ndarray:
    """Return the mean loss of each block of the texts, or of the ``first`` blocks, in nats, float64 (N,).

    The model reads ``batch`` blocks at a time, fewer if their logits would need too much memory; see ``blocks``.

    Raises:
        InputError: the model has fewer positions than a block, or the texts are shorter than one block.
    """
    encode.check_positions(model, size)
    count = max(1, min(batch, first or batch, LOGITS // (size * model.config.vocab_size)))
    model.eval()
    made = encode.blocks(texts, tokenizer, size, count, joined)
    with torch.no_grad():
        parts = [
            _block_losses(model, torch.from_numpy(ids).long().to(model.device)).cpu().numpy()
            for ids in itertools.islice(made, first and -(-first // count))
        ]
    return np.concatenate(parts)[:first]


def _block_losses(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return each block's mean prediction loss in nats, float64 (N,), from its int64 ids (N, T)."""
    following = ids.roll(-1, dims=1)
    following[:, -1] = UNPREDICTED
    logits = model(input_ids=ids, use_cache=False).logits.float()
    losses = functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
    return losses.view_as(ids).sum(1, dtype=torch.float64) / (ids.shape[1] - 1)


def read(root: Path, name: str, split: str) -> text.Rows:
    """Read one split of ``wikitext2`` (parquet files in ``root/wikitext-2-raw-v1``), ``ptb`` or a text file.

    A text file is ``root`` itself; the last tenth of its lines is its validation split.

    Returns:
        Rows ``{"text": ...}``, one per line. Lines keep their line ends, except that WikiText's blank lines become
        empty and Penn Treebank lines are stripped of white space at both ends.
    """
    if name == "wikitext2":
        rows = text.table(root / CONFIGURATION, split, ["text"])
        texts = [row["text"] if row["text"].strip() else "" for row in rows]
    elif name == "ptb":
        texts = [line.strip() for line in text.lines(root / PTB[split])]
    else:
        texts = [line.replace("\r\n", "\n") for line in text.lines(root)]
        kept = len(texts) - len(texts) // VALIDATED
        texts = texts[:kept] if split == "train" else texts[kept:]
    return [{"text": line} for line in texts]


def read_c4(root: Path, rule: str, shards: int, count: int) -> text.Rows:
    """Read documents of C4's English variant from the shards ``root/en/c4-train.NNNNN-of-01024.json.gz``.

    Args:
        root: the data set's directory.
        rule: ``paper``, random documents in random order; ``release``, the first 1 % of the first shard in its order.
        shards: for ``paper``: number of first shards to draw documents from; all of them must exist.
        count: for ``paper``: number of documents, or all documents if the shards have fewer.

    Returns:
        Rows ``{"text": ...}``.
    """
    numbers = range(shards if rule == "paper" else 1)
    files = [root / f"en/c4-train.{number:05}-of-{SHARDS:05}.json.gz" for number in numbers]
    total = sum(1 for path in files for _ in text.lines(path))
    if rule == "release":
        chosen = np.arange(max(1, round(RELEASED * total)))[:total]
    else:
        chosen = np.random.default_rng(derive("c4 documents")).permutation(total)[:count]
    wanted, documents = set(chosen.tolist()), itertools.chain.from_iterable(map(text.lines, files))
    found = {index: json.loads(line)["text"] for index, line in enumerate(documents) if index in wanted}
    return [{"text": found[index]} for index in chosen.tolist()]


class Stories(LanguageModelling):
    """The perplexity of stories: the first stories are for calibration, the others for evaluation."""

    options: StoriesOptions

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the stories, one per row, so that the tokenizer begins each story as a text."""
        content = "".join(text.lines(sources / self.options.root))
        stories = [story.strip() for story in content.split(SEPARATOR)]
        rows = [{"text": story} for story in stories if story]
        count = round(self.options.train * len(rows))
        return {"train": rows[:count], "validation": rows[count:]}
