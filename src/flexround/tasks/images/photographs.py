"""Photographs with ImageNet's labels to evaluate on, and one image of each class of ImageNet to calibrate on.

The photographs are those of the NIPS 2017 competition on adversarial images; ``images.csv`` has their labels. Images of
ImageNet's validation set may follow them; both sets are easier than all 50,000.
"""

import csv
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from flexround.errors import InputError
from flexround.tasks.images.arrays import ArrayTask, decoded, tar_files
from flexround.tasks.images.folder import EXTENSIONS
from flexround.tasks.images.options import PARTS, PhotographsOptions
from flexround.tasks.images.task import of_hits
from flexround.tasks.images.transforms import central_square
from flexround.tasks.protocol import Evaluation
from flexround.tasks.text import files as text_files

INDEX, NAME, LABEL = "images.csv", "ImageId", "TrueLabel"
LIST = "dataset.txt"


class Photographs(ArrayTask):
    """``photographs.tar`` and ``validation.tar`` are evaluated on, ``samples.tar`` is calibrated on."""

    options: PhotographsOptions

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one image."""
        return 3, self.options.size, self.options.size

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode all sets; what may be wrong with them, the readers say."""
        root, options = sources / self.options.root, self.options
        images, labels = read_samples(root / "samples.tar", options.classes, options.size)
        val_images, val_labels = read_photographs(root / "photographs.tar", options.classes, options.val, options.size)
        if options.more:
            more = read_validation(root / "validation.tar", options.classes, options.more, options.size)
            val_images, val_labels = (np.concatenate(pair) for pair in zip((val_images, val_labels), more, strict=True))
        arrays = {"train_images": images, "train_labels": labels}
        self.save(out, arrays | {"val_images": val_images, "val_labels": val_labels})

    def evaluate(self, *arguments: Any, **keywords: Any) -> Evaluation:
        """Return top-1 and top-5 accuracy on all images, and top-1 of each of two sets."""
        scores, count = super().evaluate(*arguments, **keywords).scores, self.options.val
        if self.options.more:
            scores |= dict(zip(PARTS, (scores["top1"][:count], scores["top1"][count:]), strict=True))
        return of_hits(scores)


def read_samples(path: Path, classes: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a tar of ``WNID_NAME.JPEG``, whose classes are in the order of the WNIDs.

    Returns:
        uint8 (classes, size, size, 3) and int64 (classes,).

    Raises:
        InputError: the tar or an image is damaged, or there is not one image of each class.
    """
    files = [(name, content) for name, content in sorted(tar_files(path).items()) if name.lower().endswith(EXTENSIONS)]
    found = len({PurePosixPath(name).name.partition("_")[0] for name, _ in files})
    if not len(files) == found == classes:
        raise InputError(f"{path}: {len(files)} images of {found} classes, not one of {classes}; fetch it again")
    return _squares(path, files, size), np.arange(classes)


def read_photographs(path: Path, classes: int, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode the photographs that the index in a tar names, in its order.

    Returns:
        uint8 (count, size, size, 3) and int64 (count,); the index counts classes from 1, the labels from 0.

    Raises:
        InputError: the tar, its index or an image is damaged, an image is missing, or there are not ``count``.
    """
    files = {PurePosixPath(name).name: content for name, content in tar_files(path).items()}
    if INDEX not in files:
        raise InputError(f"{path}: no {INDEX} in it; fetch it again")
    rows = _rows(path, files[INDEX], classes)
    if len(rows) != count:
        raise InputError(f"{path}: {INDEX} has {len(rows)} images instead of {count}; fetch the tar again")
    if missing := [name for name, _ in rows if name not in files]:
        raise InputError(f"{path}: {len(missing)} images are missing, the first is {missing[0]}; fetch it again")
    images = _squares(path, [(name, files[name]) for name, _ in rows], size)
    return images, np.array([label for _, label in rows], np.int64)


def read_validation(path: Path, classes: int, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode images of ImageNet's validation set, which ``dataset.txt`` in a tar lists with their labels.

    Returns:
        uint8 (count, size, size, 3) and int64 (count,).

    Raises:
        InputError: the tar, its list or an image is damaged, an image is missing, or there are not ``count``.
    """
    files = {PurePosixPath(name).name: content for name, content in tar_files(path).items()}
    lines = enumerate(files.get(LIST, b"").decode(errors="replace").splitlines(), 1)

    def row(line: str) -> tuple[str, bytes, int]:
        place, label = line.split(", ")
        if not 0 <= int(label) < classes:
            raise ValueError(f"the label is {label}, not 0 to {classes - 1}")
        name = PurePosixPath(place).name
        return name, files[name], int(label)

    records = [(f"{path}: {LIST}, line {number}", line) for number, line in lines]
    rows = text_files.converted(path, records, row, "an image with its label")
    if len(rows) != count:
        raise InputError(f"{path}: {LIST} has {len(rows)} images instead of {count}; fetch the tar again")
    images = _squares(path, [(name, content) for name, content, _ in rows], size)
    return images, np.array([label for *_, label in rows], np.int64)


def _rows(path: Path, index: bytes, classes: int) -> list[tuple[str, int]]:
    """Return the file name and the label, from 0, of each row of the index."""

    def row(line: dict[str, str]) -> tuple[str, int]:
        if not 1 <= int(line[LABEL]) <= classes:
            raise ValueError(f"{LABEL} is {line[LABEL]}, not 1 to {classes}")
        return f"{line[NAME]}.png", int(line[LABEL]) - 1

    lines = enumerate(csv.DictReader(index.decode(errors="replace").splitlines()), 2)
    records = [(f"{path}: {INDEX}, line {number}", line) for number, line in lines]
    return text_files.converted(path, records, row, "a photograph with its label")


def _squares(path: Path, files: Sequence[tuple[str, bytes]], size: int) -> np.ndarray:
    """Return the central squares of images: uint8 (N, size, size, 3)."""
    return np.stack([central_square(decoded(path, name, content), size) for name, content in files])
