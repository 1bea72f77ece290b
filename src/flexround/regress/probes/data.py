"""Calibration draws, blocks of text, perplexity and questions, on data sets of a few rows made here."""

import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flexround import artifacts
from flexround.mini import articles, tokenizers
from flexround.models import transformer
from flexround.regress.probes import networks
from flexround.settings.schema import Task as Settings
from flexround.tasks.commonsense.choices import KINDS
from flexround.tasks.protocol import build
from flexround.tasks.text import task as text

SAMPLES = 12
HELD_OUT = ("glue", "wikitext2")  # tasks whose options hold rows out
CHECKSUMS = 10**6
TASKS = {
    "imagenet": ("digits:Digits", {"train": 60, "val": 50}),
    "glue": ("glue:MiniGlue", {"name": "rte", "train": 80, "val": 70, "max_length": 32, "heldout": 30}),
    "squad": ("squad:MiniSquad", {"train": 60, "val": 50, "max_length": 64, "doc_stride": 24}),
    "wikitext2": (
        "language:MiniLanguageModelling",
        {"name": "wikitext2", "train": 20, "val": 10, "block_size": 32, "heldout": 10},
    ),
    "webnlg": ("webnlg:MiniWebNLG", {"train": 30, "test": 20, "max_length": 96, "steps": 8}),
    "commonsense": (
        "commonsense:MiniCommonsense",
        {"documents": 30, "val": 8, "questions": 40, "shots": (0,), "block_size": 32, "test_block": 48},
    ),
}


@contextmanager
def prepared(name: str) -> Iterator[tuple[Any, Path]]:
    """Make a small data set of a task; yield the task and the directory of its data."""
    module, options = TASKS[name]
    task = build(Settings.model_validate({"module": f"flexround.mini.tasks.{module}", "options": options}))
    with tempfile.TemporaryDirectory() as place:
        task.prepare(Path(place), Path(place))
        yield task, Path(place)


def calibration(name: str, variant: int) -> dict[str, float]:
    """Return which samples are drawn (a checksum), and which share of them stands in the training set and elsewhere.

    Elsewhere are the sets for evaluation, and the training rows held out to choose settings by. WikiText-2's rows are
    lines, of which many stand everywhere.
    """
    with prepared(name) as (task, data):
        drawn = task.calibration(data, SAMPLES, 0)
        found = _rows(drawn["images"] if "images" in drawn else drawn["examples"].tobytes())
        splits = {path.stem: _rows(path.read_bytes()) for path in data.glob("*.jsonl")}
        splits |= {path.stem: _rows(np.load(path)) for path in data.glob("*_images.npy")}
        if name in HELD_OUT:
            splits["heldout"] = [_identity(json.dumps(row).encode()) for row in task.held_out(data)]
    train = splits.pop("train", None) or splits.pop("train_images")
    others = [row for rows in splits.values() for row in rows]
    return {
        "indices": zlib.crc32(drawn["indices"].astype("<i8").tobytes()) % CHECKSUMS,
        "count": len(found),
        "from_train": float(np.mean([row in train for row in found])),
        "from_elsewhere": float(np.mean([row in others for row in found])),
    }


def _rows(content: np.ndarray | bytes) -> list[bytes]:
    """Return what tells each image, or each line of JSON, apart."""
    if isinstance(content, np.ndarray):
        return [image.tobytes() for image in content]
    return [_identity(line) for line in content.splitlines()]


def _identity(line: bytes) -> bytes:
    """Return what a row is about: WebNLG's context, or all of it."""
    row = json.loads(line)
    return json.dumps(row["context"] if {"reference", "references"} & row.keys() else row).encode()


def language(name: str, model: Callable[..., Any], config: dict[str, Any], variant: int) -> dict[str, float]:
    """Return the metrics of a random language model on a task, and on how many examples."""
    rows = articles.make("wikitext2", 20, 1, 0)["train"]
    tokenizer = tokenizers.train([row["text"] for row in rows], "bpe-begin", 400)
    built = model("causal-lm", vocab_size=400, initializer_range=0.3, bos_token_id=0, eos_token_id=0, **config)
    network = networks.vary(built, variant)
    with prepared(name) as (task, data), tempfile.TemporaryDirectory() as place:
        artifacts.write_text(Path(place) / text.TOKENIZER, tokenizer.to_str())
        found = task.evaluate(network, data, torch.device("cpu"), 16, Path(place), "validation")
    values = dict(found.metrics)
    values |= {f"{metric}/examples": count for metric, count in found.n_examples.items()}
    means = {key: 100 * float(hits.mean()) for key, hits in found.predictions.items() if "/acc" in key}
    return values | means


def perplexity(variant: int) -> dict[str, float]:
    """Return the perplexity of a random GPT-2 on WikiText-2's articles."""
    sizes = {"n_embd": 24, "n_layer": 1, "n_head": 2, "n_positions": 32}
    return language("wikitext2", transformer.gpt2, sizes, variant)


def questions(variant: int) -> dict[str, float]:
    """Return the answers of a random LLaMA, by both accuracies and by the tables' choice of them."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    found = language("commonsense", transformer.llama, {**sizes, "max_position_embeddings": 512}, variant)
    return {key: value for key, value in found.items() if key.partition("/")[0] in {*KINDS, "ppl", "ppl_48"}}
