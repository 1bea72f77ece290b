"""Training of image classifiers: SGD with momentum, a schedule, label smoothing, random translations."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from flexround.errors import NumericalError
from flexround.machine.seeding import derive
from flexround.tasks.options import FinetuneSettings
from flexround.tasks.resumable import Progress


class TrainingImages(NamedTuple):
    """N training images; ``load`` returns the images at indices (B,), without augmentation, uint8 (B, H, W, 3)."""

    load: Callable[[np.ndarray], np.ndarray]
    labels: np.ndarray  # int64 (N,)


def train(
    model: nn.Module,
    images: TrainingImages,
    normalise: Callable[[np.ndarray, torch.device], torch.Tensor],
    settings: FinetuneSettings,
) -> dict[str, Any]:
    """Train ``model`` in place on its device and leave it in evaluation mode.

    ``model`` maps (B, 3, H, W) to logits (B, classes); ``normalise`` turns uint8 (B, H, W, 3) into its input.

    Returns:
        Loss and accuracy (percent) of the last epoch.

    Raises:
        NumericalError: the loss is NaN or Inf.
    """
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, settings.momentum, 0, settings.weight_decay, nesterov=settings.nesterov
    )

    def train_epoch(epoch: int) -> dict[str, float]:
        return _train_epoch(model, optimizer, images, normalise, settings, epoch)

    model.train()
    facts = Progress(model, optimizer).epochs(settings.epochs, derive("dropout", settings.seed), train_epoch)
    model.eval()
    return facts


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: TrainingImages,
    normalise: Callable[[np.ndarray, torch.device], torch.Tensor],
    settings: FinetuneSettings,
    epoch: int,
) -> dict[str, float]:
    """Train for one epoch; return the mean loss and the accuracy."""
    device = next(model.parameters()).device
    batch = min(settings.batch, len(images.labels))
    steps = len(images.labels) // batch  # drops the incomplete last batch: batch norm is unstable on a few images
    loss_sum, correct = 0.0, 0
    progress = tqdm(_batches(images, settings, epoch, batch), total=steps, disable=None, leave=False)
    for step, (pixels, labels) in enumerate(progress):
        optimizer.param_groups[0]["lr"] = learning_rate(settings, epoch + step / steps)
        target = torch.from_numpy(labels).to(device)
        logits = model(normalise(pixels, device))
        loss = torch.nn.functional.cross_entropy(logits, target, label_smoothing=settings.label_smoothing)
        if not math.isfinite(value := loss.item()):
            where = f"in epoch {epoch + 1}, step {step + 1}"
            raise NumericalError(f"training: the loss is {value} {where}; lower `lr` or lengthen `warmup`")
        loss_sum += value
        correct += int((logits.argmax(1) == target).sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"train_loss": loss_sum / steps, "train_accuracy": 100.0 * correct / (steps * batch)}


def learning_rate(settings: FinetuneSettings, epoch: float) -> float:
    """Return the learning rate at a fractional epoch: linear warm-up, then the schedule."""
    if epoch < settings.warmup:
        return settings.lr * (epoch + 1e-3) / settings.warmup
    if settings.schedule == "step":
        return settings.lr * settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones)
    done = (epoch - settings.warmup) / (settings.epochs - settings.warmup)
    return settings.lr * 0.5 * (1.0 + math.cos(math.pi * done))


def _batches(
    images: TrainingImages, settings: FinetuneSettings, epoch: int, batch: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield augmented images uint8 (batch, H, W, 3) and labels int64 (batch,), each image at most once per epoch."""
    rng = np.random.default_rng(derive("training batches", settings.seed, epoch))
    order = rng.permutation(len(images.labels))
    for start in range(0, len(order) - batch + 1, batch):
        indices = order[start : start + batch]
        yield shifted(images.load(indices), settings.shift, rng), images.labels[indices]


def shifted(pixels: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Shift each image (B, H, W, 3) by up to ``most`` pixels, with reflection at the border."""
    if not most:
        return pixels
    count, height, width, _ = pixels.shape
    padded = np.pad(pixels, ((0, 0), (most, most), (most, most), (0, 0)), mode="reflect")
    corner: np.ndarray = rng.integers(2 * most + 1, size=(2, count, 1, 1))
    rows, columns = corner[0] + np.arange(height)[:, None], corner[1] + np.arange(width)
    return padded[np.arange(count)[:, None, None], rows, columns]
