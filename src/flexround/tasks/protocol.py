"""The protocol of all tasks: data, fine-tuning recipe and metric; each task family has its own file."""

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
COMPANIONS = ("tokenizer.json",)  # files beside a network's weights that its evaluation needs


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
        metrics: value of each metric of ``flexround.metrics``, in its unit.
        stderr: standard error of each metric over the examples, in the metric's unit.
        n_examples: number of examples behind each metric.
        scores: per-example values of each metric that is their mean, e.g. ``top1`` -> uint8 (N,) of 0 and 1.
        replicates: the other metrics' values on bootstrap resamples that all runs share: float64 (R,).
        predictions: the model's predictions, for the record; arrays of any kind.
        protocol: further facts that decide the numbers, for the record: versions, hashes and seeds, as JSON can hold.
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
    """Calibration samples as input of a model's first block.

    Attributes:
        x: (N, ...) images, or int64 (N, 2, T) token ids and token types.
        mask: bool (N, T), True for real tokens; None without padding.
    """

    x: torch.Tensor
    mask: torch.Tensor | None = None

    def trimmed(self) -> "Inputs":
        """Return the samples without the columns that are padding in all samples."""
        if self.mask is None:
            return self
        length = int(self.mask.sum(1).max())
        return Inputs(self.x[..., :length], self.mask[:, :length])


class Task(Protocol):
    """Data, metric and fine-tuning recipe; the class is built from its validated options (``settings/options.py``).

    Only ``prepare`` reads ``sources``.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the first block's input, for planning."""

    @property
    def input_dtype(self) -> str:
        """Type of a sample: ``float32`` for images, ``int64`` for token ids."""

    @property
    def head(self) -> dict[str, Any]:
        """The task's keyword arguments for the model's factory, e.g. the kind of head."""

    def prepare(self, out: Path, sources: Path) -> None:
        """Check the raw data under ``sources`` and write the prepared data and its ``manifest.json`` to ``out``."""

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Draw the calibration samples of a seed; a smaller draw is a prefix of a larger draw.

        Returns:
            The arrays that ``inputs`` reads, and ``indices`` int64 (samples,): the positions of the training examples,
            or the numbers that choose them.
        """

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return calibration samples as the input of the model's first block.

        ``samples`` are the arrays that ``calibration`` returned, with unchanged shapes. ``network`` is the directory of
        the model and of the task's further files there (its tokenizer).
        """

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place on its device; return reproducible facts for the manifest."""

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Evaluate ``model`` on the validation set or, to choose settings, on a held-out part of the training set.

        Memory does not grow with the size of the set.

        Raises:
            SettingsError: the task has no held-out part, or the model can't do the task.
            InputError: model and data don't match, e.g. too few positions or outputs.
            NumericalError: the outputs or a metric are NaN or Inf.
        """


def build(task: schema.TaskSpec) -> Task:
    """Import a task's class and build the task from its validated options.

    Raises:
        SettingsError: no such class, or options that the class doesn't accept.
    """
    checked = validate(options.of(task.module).options, task.options, f"options of {task.module}")
    return imports.load(task.module)(checked)


def named(scale: schema.Scale, name: str) -> Task:
    """Build one of a scale's tasks.

    Raises:
        SettingsError: no such task, or see ``build``.
    """
    return build(look_up(f"scale {scale.name}: task", scale.tasks, name))


def draw_indices(available: int, samples: int, seed: int) -> np.ndarray:
    """Draw calibration samples without replacement: int64 (samples,), a prefix of every larger draw with the seed.

    Raises:
        InputError: no samples, or more samples than are available.
    """
    if not 1 <= samples <= available:
        raise InputError(f"samples={samples}: choose from 1 to {available}, the size of the training set")
    rng = np.random.default_rng(derive("calibration samples", seed))
    return rng.permutation(available)[:samples]
