"""Image sets that are small enough to lie in one array."""

from pathlib import Path

import numpy as np

from flexround.tasks.images.options import FULL_SCALE
from flexround.tasks.images.task import ImageTask
from flexround.tasks.images.training import ArrayImages, TrainingImages
from flexround.tasks.protocol import draw_indices


class ArrayTask(ImageTask):
    """A task whose data are ``train_images.npy``, uint8 (N, H, W, 3), and ``train_labels.npy``, and the same of val."""

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training images as they are, uint8 (samples, H, W, 3), and their int64 indices."""
        images = np.load(data / "train_images.npy", mmap_mode="r")
        indices = draw_indices(len(images), samples, seed)
        return {"images": images[indices], "indices": indices}

    def training_images(self, data: Path, whole: bool) -> TrainingImages:
        """Return the training set, in memory."""
        return ArrayImages(np.load(data / "train_images.npy"), np.load(data / "train_labels.npy"), FULL_SCALE)
