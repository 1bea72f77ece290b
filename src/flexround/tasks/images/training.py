"""Training an image classifier: SGD with momentum, a schedule, label smoothing, light augmentation."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from tqdm import tqdm

from flexround.errors import NumericalError
from flexround.machine.seeding import derive
from flexround.tasks.images.options import FULL_SCALE, FinetuneSettings
from flexround.tasks.images.transforms import decode_all, random_resized_crop, resize_and_crop
from flexround.tasks.resumable import Progress

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ArrayImages:
    """Training images that fit in memory: ``images`` uint8 (N, H, H, 3), ``labels`` int64 (N,)."""

    images: np.ndarray
    labels: np.ndarray

    def whole(self, indices: np.ndarray) -> np.ndarray:
        """Return images as they are evaluated: uint8 (B, H, W, 3)."""
        return self.images[indices]

    def cropped(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a random resized crop of each image: uint8 (B, H, W, 3)."""
        size = self.images.shape[1]
        images = (Image.fromarray(image) for image in self.images[indices])
        return np.stack([random_resized_crop(image, size, FULL_SCALE, rng) for image in images])


@dataclasses.dataclass(frozen=True)
class FileImages:
    """Training images decoded anew whenever they are asked for; the methods of ``ArrayImages``."""

    root: Path
    files: Sequence[str]
    labels: np.ndarray
    resize: int
    crop: int
    train_scale: tuple[float, float]

    def whole(self, indices: np.ndarray) -> np.ndarray:
        return self.decoded(indices, lambda _, image: resize_and_crop(image, self.resize, self.crop))

    def cropped(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # One generator per image: the threads that decode don't finish in a fixed order.
        rngs = rng.spawn(len(indices))
        return self.decoded(indices, lambda i, image: random_resized_crop(image, self.crop, self.train_scale, rngs[i]))

    def decoded(self, indices: np.ndarray, transform: Callable[[int, Image.Image], np.ndarray]) -> np.ndarray:
        """Return uint8 (B, crop, crop, 3), ``transform`` of the images' positions in ``indices`` and the images."""
        out = np.empty((len(indices), self.crop, self.crop, 3), np.uint8)
        return decode_all(self.root, [self.files[index] for index in indices], transform, out)


TrainingImages = ArrayImages | FileImages


def train(
    model: nn.Module,
    images: TrainingImages,
    normalise: Callable[[np.ndarray, torch.device], torch.Tensor],
    settings: FinetuneSettings,
) -> dict[str, Any]:
    """Train ``model`` in place on its device and leave it in evaluation mode.

    ``model`` maps (B, 3, H, W) to logits (B, classes); ``normalise`` turns uint8 (B, H, W, 3) into its input.

    Returns:
        Loss and accuracy (percent) over the last epoch.

    Raises:
        NumericalError: the loss is NaN or Inf.
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, settings.momentum, 0, settings.weight_decay, nesterov=settings.nesterov
    )
    progress = Progress(model, optimizer)
    model.train()
    # Dropout draws from torch's global generator; it is given back as it was.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derive("dropout", settings.seed))
        done, facts = progress.go_on()
        for epoch in range(done, settings.epochs):
            started = time.perf_counter()
            facts = _train_epoch(model, optimizer, images, normalise, settings, epoch)
            seconds, loss, accuracy = time.perf_counter() - started, facts["train_loss"], facts["train_accuracy"]
            message = "epoch %d/%d: loss %.4f, accuracy %.2f %%, %.1f s"
            log.info(message, epoch + 1, settings.epochs, loss, accuracy, seconds)
            progress.epoch_done(epoch + 1, facts)
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
    """Train for one epoch; return its mean loss and its accuracy."""
    device = next(model.parameters()).device
    batch = min(settings.batch, len(images.labels))
    steps = len(images.labels) // batch  # the incomplete last batch is dropped: batch norm is unstable on a few images
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
    """Yield augmented images uint8 (batch, H, W, 3) and labels int64 (batch,), each image once an epoch at most."""
    rng = np.random.default_rng(derive("training batches", settings.seed, epoch))
    order = rng.permutation(len(images.labels))
    for start in range(0, len(order) - batch + 1, batch):
        indices = order[start : start + batch]
        pixels = images.cropped(indices, rng) if settings.random_resized_crop else images.whole(indices)
        yield augment(pixels, settings.shift, settings.flip, rng), images.labels[indices]


def augment(pixels: np.ndarray, shift: int, flip: bool, rng: np.random.Generator) -> np.ndarray:
    """Shift each image (B, H, W, 3) by up to ``shift`` pixels, reflecting at the border, and mirror half of them."""
    count, height, width, _ = pixels.shape
    if shift:
        padded = np.pad(pixels, ((0, 0), (shift, shift), (shift, shift), (0, 0)), mode="reflect")
        corner: np.ndarray = rng.integers(2 * shift + 1, size=(2, count, 1, 1))
        rows, columns = corner[0] + np.arange(height)[:, None], corner[1] + np.arange(width)
        pixels = padded[np.arange(count)[:, None, None], rows, columns]
    if flip:
        pixels = np.where(rng.random((count, 1, 1, 1)) < 0.5, pixels[:, :, ::-1], pixels)
    return pixels
