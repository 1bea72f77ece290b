"""Tasks: data, fine-tuning recipe and metric, a file for each family, behind one small protocol."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from flexround import imports, metrics
from flexround.errors import InputError, look_up
from flexround.machine.seeding import derive
from flexround.settings import options, schema
from flexround.settings.validation import validate

Split = Literal["validation", "heldout"]
COMPANIONS = ("tokenizer.json",)  # files beside the weights of a network that its evaluation needs


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What one evaluation found.

    Attributes:
        metrics: value of each metric of ``flexround.metrics``, in its unit.
        stderr: standard error of each metric over the examples, in the metric's unit.
        n_examples: examples behind each metric.
        scores: per-example values of the metrics that are their mean, e.g. ``top1`` -> uint8 (N,) of 0 and 1.
        replicates: for the other metrics, their values on bootstrap resamples that all runs share: float64 (R,).
        predictions: what was predicted, for the record; arrays of any kind.
        protocol: what else the numbers depend on, for the record: versions, hashes and seeds that JSON can hold.
    """

    metrics: dict[str, float]
    stderr: dict[str, float]
    n_examples: dict[str, int]
    scores: dict[str, np.ndarray]
    replicates: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    predictions: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    protocol: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Direction of each metric."""
        return {name: metrics.of(name).higher_is_better for name in self.metrics}


class Inputs(NamedTuple):
    """Calibration samples as the first block of a model takes them.

    Attributes:
        x: (N, ...) images, or int64 (N, 2, T) token ids and token types.
        mask: bool (N, T), True for real tokens; None without padding.
    """

    x: torch.Tensor
    mask: torch.Tensor | None = None

    def trimmed(self) -> "Inputs":
        """Return the samples without the columns in which all of them are padded."""
        if self.mask is None:
            return self
        length = int(self.mask.sum(1).max())
        return Inputs(self.x[..., :length], self.mask[:, :length])


class Task(Protocol):
    """Data + metric + fine-tuning recipe; the class is built from its validated options (``settings/options.py``).

    Nothing but ``prepare`` reads ``sources``.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the first block sees it, for planning."""

    @property
    def input_dtype(self) -> str:
        """Its type: ``float32`` for images, ``int64`` for token ids."""

    @property
    def head(self) -> dict[str, Any]:
        """Keyword arguments that the model's factory gets from the task, e.g. the kind of head."""

    def prepare(self, out: Path, sources: Path) -> None:
        """Check the raw data under ``sources`` and write the prepared data and its ``manifest.json`` to ``out``."""

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Draw the very calibration samples of a seed; a smaller draw is a prefix of a larger one.

        Returns:
            The arrays that ``inputs`` reads, and ``indices`` int64 (samples,): which training examples they are, or
            what they are chosen by.
        """

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return calibration samples as the input of the model's first block.

        ``samples`` are the arrays of ``calibration``, of the shapes it returns. ``network`` is the directory of the
        model, with whatever else the task keeps there (its tokenizer).
        """

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place, on the device it is on; return reproducible facts for the manifest."""

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Evaluate ``model`` on the validation set, or on a held-out part of the training set to choose settings by.

        In a memory that doesn't grow with the size of the set.

        Raises:
            SettingsError: the task has no held-out part, or the model can't do the task.
            InputError: model and data don't belong together, e.g. too few positions or outputs.
            NumericalError: the outputs or a metric are NaN or Inf.
        """


def build(task: schema.TaskSpec) -> Task:
    """Import the class of a task and build it from its validated options.

    Raises:
        SettingsError: no such class, or options that it doesn't take.
    """
    checked = validate(options.of(task.module).options, task.options, f"options of {task.module}")
    return imports.load(task.module)(checked)


def named(scale: schema.Scale, name: str) -> Task:
    """Build a task of a scale.

    Raises:
        SettingsError: no such task, or see ``build``.
    """
    return build(look_up(f"scale {scale.name}: task", scale.tasks, name))


def draw_indices(available: int, samples: int, seed: int) -> np.ndarray:
    """Draw calibration samples without replacement: int64 (samples,), a prefix of every larger draw of the seed.

    Raises:
        InputError: no samples, or more than there are.
    """
    if not 1 <= samples <= available:
        raise InputError(f"samples={samples}: choose from 1 to {available}, the size of the training set")
    rng = np.random.default_rng(derive("calibration samples", seed))
    return rng.permutation(available)[:samples]
