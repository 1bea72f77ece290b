"""Photographs with ImageNet's labels to evaluate on, and one image of each class of ImageNet to calibrate on.

The photographs are those of the NIPS 2017 competition on adversarial images; ``images.csv`` has their labels.
"""

import csv
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from flexround.errors import InputError
from flexround.tasks.images.arrays import ArrayTask, decoded, opened
from flexround.tasks.images.folder import EXTENSIONS
from flexround.tasks.images.options import PhotographsOptions
from flexround.tasks.images.transforms import central_square

INDEX, NAME, LABEL = "images.csv", "ImageId", "TrueLabel"


class Photographs(ArrayTask):
    """The images of ``photographs.tar`` are what is evaluated, those of ``samples.tar`` what is calibrated on."""

    options: PhotographsOptions

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of one image."""
        return 3, self.options.size, self.options.size

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode both sets; what may be wrong with them, the readers say."""
        root, options = sources / self.options.root, self.options
        images, labels = read_samples(root / "samples.tar", options.classes, options.size)
        val_images, val_labels = read_photographs(root / "photographs.tar", options.classes, options.val, options.size)
        arrays = {"train_images": images, "train_labels": labels}
        self.save(out, arrays | {"val_images": val_images, "val_labels": val_labels})


def read_samples(path: Path, classes: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a tar of ``WNID_NAME.JPEG``, whose classes are in the order of the WNIDs.

    Returns:
        uint8 (classes, size, size, 3) and int64 (classes,).

    Raises:
        InputError: the tar or an image is damaged, or there is not one image of each class.
    """
    with opened(path) as (tar, members):
        names = sorted(name for name in members if name.lower().endswith(EXTENSIONS))
        found = len({PurePosixPath(name).name.partition("_")[0] for name in names})
        if not len(names) == found == classes:
            raise InputError(f"{path}: {len(names)} images of {found} classes, not one of {classes}; fetch it again")
        return _squares(path, tar, [members[name] for name in names], size), np.arange(classes)


def read_photographs(path: Path, classes: int, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode the photographs that the index in a tar names, in its order.

    Returns:
        uint8 (count, size, size, 3) and int64 (count,); the index counts classes from 1, the labels from 0.

    Raises:
        InputError: the tar, its index or an image is damaged, an image is missing, or there are not ``count``.
    """
    with opened(path) as (tar, members):
        by_name = {PurePosixPath(name).name: member for name, member in members.items()}
        rows = _rows(path, tar, by_name.get(INDEX), classes)
        if len(rows) != count:
            raise InputError(f"{path}: {INDEX} has {len(rows)} images instead of {count}; fetch the tar again")
        if missing := [name for name, _ in rows if name not in by_name]:
            raise InputError(f"{path}: {len(missing)} images are missing, the first is {missing[0]}; fetch it again")
        images = _squares(path, tar, [by_name[name] for name, _ in rows], size)
    return images, np.array([label for _, label in rows], np.int64)


def _rows(path: Path, tar: tarfile.TarFile, index: tarfile.TarInfo | None, classes: int) -> list[tuple[str, int]]:
    """Return the file name and the label, from 0, of each row of the index."""
    content = tar.extractfile(index) if index else None
    if content is None:
        raise InputError(f"{path}: no {INDEX} in it; fetch it again")
    reader = csv.DictReader(content.read().decode(errors="replace").splitlines())
    lines = list(reader)
    if missing := [column for column in (NAME, LABEL) if column not in (reader.fieldnames or ())]:
        raise InputError(f"{path}: {INDEX} has no column {missing[0]}; fetch the tar again")
    valid = {str(label) for label in range(1, classes + 1)}
    for number, line in enumerate(lines, 2):
        if line[LABEL] not in valid:
            found = f"{INDEX}, line {number}: {LABEL} is {line[LABEL]!r}, not 1 to {classes}"
            raise InputError(f"{path}: {found}; fetch the tar again")
    return [(f"{line[NAME]}.png", int(line[LABEL]) - 1) for line in lines]


def _squares(path: Path, tar: tarfile.TarFile, members: Sequence[tarfile.TarInfo], size: int) -> np.ndarray:
    """Return the central squares of images: uint8 (N, size, size, 3)."""
    images = np.empty((len(members), size, size, 3), np.uint8)
    for image, member in zip(images, members, strict=True):
        image[:] = central_square(decoded(path, member.name, tar.extractfile(member)), size)
    return images
