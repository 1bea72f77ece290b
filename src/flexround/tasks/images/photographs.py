"""Photographs with ImageNet's labels to evaluate on, and one image of each class of ImageNet to calibrate on.

The photographs are those of the NIPS 2017 competition on adversarial images; ``images.csv`` has their labels. Images of
ImageNet's validation set may follow them; both sets are easier than all 50,000.
"""

import csv
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS

from flexround.tasks.images.arrays import ArrayTask, decoded, tar_files
from flexround.tasks.images.options import PARTS, PhotographsOptions
from flexround.tasks.images.task import of_hits
from flexround.tasks.images.transforms import central_square
from flexround.tasks.protocol import Evaluation

INDEX, LIST = "images.csv", "dataset.txt"


class Photographs(ArrayTask):
    """``photographs.tar`` and ``validation.tar`` are evaluated on, ``samples.tar`` is calibrated on."""

    options: PhotographsOptions

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one image."""
        return 3, self.options.size, self.options.size

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode all sets."""
        root, options = sources / self.options.root, self.options
        images, labels = read_samples(root / "samples.tar", options.size)
        val_images, val_labels = read_photographs(root / "photographs.tar", options.size)
        if options.more:
            more = read_validation(root / "validation.tar", options.size)
            val_images, val_labels = (np.concatenate(pair) for pair in zip((val_images, val_labels), more, strict=True))
        arrays = {"train_images": images, "train_labels": labels}
        self.save(out, arrays | {"val_images": val_images, "val_labels": val_labels})

    def evaluate(self, *arguments: Any, **keywords: Any) -> Evaluation:
        """Return top-1 and top-5 accuracy on all images, and top-1 of each of two sets."""
        scores, count = super().evaluate(*arguments, **keywords).scores, self.options.val
        if self.options.more:
            scores |= dict(zip(PARTS, (scores["top1"][:count], scores["top1"][count:]), strict=True))
        return of_hits(scores)


def read_samples(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a tar of ``WNID_NAME.JPEG``, one image of each class; the classes are in the order of the WNIDs.

    Returns:
        uint8 (classes, size, size, 3) and int64 (classes,).
    """
    images = [content for name, content in tar_files(path).items() if name.lower().endswith(IMG_EXTENSIONS)]
    return _squares(images, size), np.arange(len(images))


def read_photographs(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode the photographs that the index in a tar names, in its order.

    Returns:
        uint8 (N, size, size, 3) and int64 (N,); the index counts classes from 1, the labels from 0.
    """
    files = _by_last_name(path)
    rows = list(csv.DictReader(files[INDEX].decode().splitlines()))
    images = _squares([files[f"{row['ImageId']}.png"] for row in rows], size)
    return images, np.array([int(row["TrueLabel"]) - 1 for row in rows])


def read_validation(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode images of ImageNet's validation set, which ``dataset.txt`` in a tar lists with their labels.

    Returns:
        uint8 (N, size, size, 3) and int64 (N,).
    """
    files = _by_last_name(path)
    rows = [line.split(", ") for line in files[LIST].decode().splitlines()]
    images = _squares([files[PurePosixPath(place).name] for place, _ in rows], size)
    return images, np.array([int(label) for _, label in rows])


def _by_last_name(path: Path) -> dict[str, bytes]:
    """Return the files in a tar by the last component of their names."""
    return {PurePosixPath(name).name: content for name, content in tar_files(path).items()}


def _squares(files: Sequence[bytes], size: int) -> np.ndarray:
    """Return the central squares of images: uint8 (N, size, size, 3)."""
    return np.stack([central_square(decoded(content), size) for content in files])
