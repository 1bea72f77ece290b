"""The common part of all text tasks: rows on disk, calibration draws, held-out rows, batches through a model."""

import abc
import bz2
import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyarrow import parquet
from torch import nn

from flexround.errors import InputError, NumericalError
from flexround.io.artifacts import write_manifest, write_text
from flexround.machine.seeding import derive
from flexround.tasks.encode import Encoded
from flexround.tasks.options import TextOptions
from flexround.tasks.protocol import Evaluation, Inputs, Split, draw_indices
from flexround.tasks.text_metrics import Scored

Rows = list[dict[str, Any]]
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


class TextTask(abc.ABC):
    """A task whose prepared data are one JSON-lines file per split."""

    input_dtype = "int64"

    def __init__(self, options: TextOptions) -> None:
        self.options = options

    @property
    def input_shape(self) -> tuple[int, int]:
        """Shape of one sample: token ids and token types."""
        return 2, self.options.max_length

    @abc.abstractmethod
    def rows(self, sources: Path) -> dict[str, Rows]:
        """Return each split's rows, created or read from ``sources``."""

    @abc.abstractmethod
    def encode(self, rows: Rows, network: Path) -> Encoded:
        """Return one input per row, encoded with a network's tokenizer."""

    def prepare(self, out: Path, sources: Path) -> None:
        splits = self.rows(sources)
        for name, rows in splits.items():
            write_text(out / f"{name}.jsonl", "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        facts = self.options.model_dump(mode="json", exclude={"root"})
        write_manifest(out, [f"{name}.jsonl" for name in splits], options=facts)

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training rows that aren't held out, and their indices, int64 (samples,), see ``packed``."""
        lines = read_lines(data, "train")
        kept, _ = self.parts(len(lines))
        indices = kept[draw_indices(len(kept), samples, seed)]
        return packed(indices, [lines[index] for index in indices])

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return calibration rows as ids and types, int64 (N, 2, T), with their mask."""
        encoded = self.encode(sampled(samples), network)
        tokens = np.stack([encoded.ids, encoded.types], axis=1).astype(np.int64)
        return Inputs(torch.from_numpy(tokens), torch.from_numpy(encoded.mask))

    def parts(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the calibration part and of the held-out part, int64 (N,) each, ascending."""
        order = np.random.default_rng(derive("held-out rows")).permutation(count)
        return np.sort(order[self.options.heldout :]), np.sort(order[: self.options.heldout])

    def held_out(self, data: Path) -> Rows:
        """Return the held-out training rows, which serve to choose settings."""
        lines = read_lines(data, "train")
        return [json.loads(lines[index]) for index in self.parts(len(lines))[1]]

    def split_rows(self, data: Path, split: Split, name: str = "validation") -> Rows:
        """Return the rows on which a split is evaluated."""
        return self.held_out(data) if split == "heldout" else read_rows(data, name)


def packed(indices: np.ndarray, lines: Sequence[str]) -> dict[str, np.ndarray]:
    """Return calibration samples: ``indices`` int64 (samples,), ``examples``, UTF-8 JSON lines as uint8 (bytes,)."""
    return {"indices": indices, "examples": np.frombuffer("\n".join(lines).encode(), np.uint8)}


def sampled(samples: dict[str, np.ndarray]) -> Rows:
    """Return the rows of the calibration samples' ``examples``, uint8 (bytes,)."""
    return [json.loads(line) for line in samples["examples"].tobytes().splitlines()]


def read_lines(data: Path, split: str) -> list[str]:
    """Return the JSON lines of a split."""
    # splitlines would also split at separators inside a text.
    return (data / f"{split}.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")


def read_rows(data: Path, split: str) -> Rows:
    """Return the rows of a split."""
    return [json.loads(line) for line in read_lines(data, split)]


def arguments(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``ids``, ``types`` and ``mask`` (B, T) by transformers' names, without columns of padding only.

    Attention and loss ignore padding, so these columns would only cost time.
    """
    length = int(batch["mask"].any(0).sum())
    ids, types, mask = (batch[name][:, :length].long() for name in ("ids", "types", "mask"))
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


def accepted(model: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Drop the token types (B, T) if the model has no embedding for them: GPT-Neo would embed them as words."""
    if hasattr(getattr(model, "module", model).config, "type_vocab_size"):  # .module: of a data-parallel model
        return inputs
    return {name: value for name, value in inputs.items() if name != "token_type_ids"}


def run(
    model: nn.Module,
    encoded: Encoded,
    size: int,
    device: torch.device,
    read: Callable[[Any], Sequence[torch.Tensor]],
) -> list[np.ndarray]:
    """Run a model over all inputs; return the tensors that ``read`` selects, float32 (N, ...), on the CPU.

    A batch is as long as its longest input; ``read`` must give all batches the same width.

    Raises:
        NumericalError: NaN in these tensors.
    """
    model.eval()
    order = np.argsort(encoded.mask.sum(1), kind="stable")
    parts: list[list[np.ndarray]] = []
    with torch.no_grad():
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            batch = {name: torch.from_numpy(array[rows]).to(device) for name, array in vars(encoded).items()}
            output = model(**accepted(model, arguments(batch)))
            parts.append([value.float().cpu().numpy() for value in read(output)])
    back = np.argsort(order)
    found = [np.concatenate(column)[back] for column in zip(*parts, strict=True)]
    if any(np.isnan(array).any() for array in found):
        raise NumericalError("NaN among the logits; the model has diverged")
    return found


def evaluation(
    scored: Mapping[str, Scored], predictions: dict[str, np.ndarray], protocol: dict[str, Any] | None = None
) -> Evaluation:
    """Assemble an evaluation from scored metrics and predictions, arrays of any shape."""
    return Evaluation(
        metrics={name: metric.value for name, metric in scored.items()},
        stderr={name: metric.stderr for name, metric in scored.items()},
        n_examples={name: metric.examples for name, metric in scored.items()},
        scores={name: metric.scores for name, metric in scored.items() if metric.scores is not None},
        replicates={name: metric.replicates for name, metric in scored.items() if metric.replicates is not None},
        predictions=predictions,
        protocol=protocol or {},
    )


def lines(path: Path) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, which may be compressed with gzip or bzip2.

    Only ``\n`` ends a line, and it is kept; a line may contain other separators.
    """
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file


def table(folder: Path, split: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return a split's rows, with the given columns in the given order.

    Args:
        folder: directory of ``SPLIT.parquet`` or its shards ``SPLIT-*.parquet``, or its parent; then the first
            subdirectory with such files counts. The names may have a prefix, as in ``piqa_train.parquet``.
        split: the split's name.
        columns: columns of every file.

    Raises:
        InputError: the split or one of its shards is missing.
    """
    rows = (parquet.read_table(path, columns=list(columns)).to_pylist() for path in _files(folder, split))
    return list(itertools.chain.from_iterable(rows))


def _files(folder: Path, split: str) -> list[Path]:
    """Return a split's file, or its shards in order."""
    places = (folder, *sorted(path for path in folder.glob("*") if path.is_dir()))
    for place, name in itertools.product(places, (split, f"*_{split}")):
        found = sorted(place.glob(f"{name}.parquet")) or sorted(place.glob(f"{name}-*.parquet"))
        if found:
            total = re.search(r"-of-(\d+)", found[0].name)
            if total and int(total[1]) != len(found):
                raise InputError(f"{found[0]}: is one of {int(total[1])} shards, but there are {len(found)}")
            return found
    raise InputError(
        f"{folder}: {split}.parquet and {split}-*.parquet are missing; params/sources.yaml says where to get the data"
    )
