"""CIFAR-10 from two tars of images, one folder for each class: ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``.

Or from the parquet files of the Hugging Face hub, ``plain_text/train-*`` and ``plain_text/test-*``, which are lossless.
"""

import io
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from flexround.errors import InputError
from flexround.tasks.images.arrays import ArrayTask, decoded, opened
from flexround.tasks.images.options import Cifar10Options
from flexround.tasks.text import files as hub_files

SIZE = 32
FOLDER = "plain_text"  # of the parquet files


class Cifar10(ArrayTask):
    """CIFAR-10. The test images are what is evaluated; some training images are kept to calibrate on."""

    options: Cifar10Options
    input_shape = (3, SIZE, SIZE)

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode the test images and a part of the training images, straight from the tars, or from parquet.

        Raises:
            InputError: a source without images, with other classes or another number of images, or a damaged image.
        """
        root, options = sources / self.options.root, self.options
        lossless = (root / FOLDER).is_dir()
        arrays: dict[str, np.ndarray] = {}
        for name, split, count in (("train", "train", options.train), ("val", "test", None)):
            path = root / FOLDER / split if lossless else root / f"{split}.tar"
            images, labels = (read_parquet if lossless else read)(path, options.classes, count)
            if count is None and len(labels) != options.val:
                raise InputError(f"{path}: {len(labels)} images instead of {options.val}; fetch it again")
            arrays |= {f"{name}_images": images, f"{name}_labels": labels}
        self.save(out, arrays)


def read(path: Path, classes: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Decode the images of a tar, class by class in the order of their names; nothing is extracted.

    Args:
        path: of the tar; an image's class is the folder it lies in.
        classes: how many there must be.
        count: images to keep, as many of each class, the first by name; None keeps all.

    Returns:
        uint8 (N, 32, 32, 3) and int64 (N,).

    Raises:
        InputError: it is no tar, has other classes or too few images, or an image is damaged or of another size.
    """
    with opened(path) as (tar, members):
        by_class: dict[str, list[str]] = {}
        for name in sorted(members):
            by_class.setdefault(PurePosixPath(name).parent.name, []).append(name)
        if len(by_class) != classes:
            raise InputError(f"{path}: {len(by_class)} classes instead of {classes}; fetch it again")
        if count is not None:
            by_class = {name: _first(path, name, files, count // classes) for name, files in by_class.items()}
        files = [file for of_class in by_class.values() for file in of_class]
        images = [_pixels(path, name, tar.extractfile(members[name])) for name in files]
    labels = np.repeat(np.arange(classes), [len(of_class) for of_class in by_class.values()])
    return np.stack(images), labels.astype(np.int64)


def read_parquet(path: Path, classes: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Decode the images of a split, class by class as ``read`` does, in the order of the rows.

    Args:
        path: ``FOLDER/SPLIT``, of the files ``SPLIT-*.parquet`` with the columns ``img`` (``bytes`` of an image) and
            ``label`` (int).
        classes, count: as in ``read``.

    Returns:
        uint8 (N, 32, 32, 3) and int64 (N,).

    Raises:
        InputError: as of ``read``; a file is missing or damaged.
    """
    _, rows = hub_files.read(f"{path.name} of CIFAR-10", [path.parent], [path.name], ["img", "label"])
    by_class: dict[int, list[str]] = {label: [] for label in range(classes)}
    for index, row in enumerate(rows):
        if row["label"] not in by_class:
            raise InputError(f"{path}: row {index}: label {row['label']!r} of {classes} classes; fetch it again")
        by_class[row["label"]].append(str(index))
    if count is not None:
        by_class = {label: _first(path, str(label), of, count // classes) for label, of in by_class.items()}
    contents = [(index, rows[int(index)]["img"]) for of_class in by_class.values() for index in of_class]
    images = [_pixels(path, f"row {index}", io.BytesIO(dict(img or {}).get("bytes", b""))) for index, img in contents]
    labels = np.repeat(np.arange(classes), [len(of_class) for of_class in by_class.values()])
    return np.stack(images), labels.astype(np.int64)


def _first(path: Path, name: str, files: list[str], count: int) -> list[str]:
    """Return the first files of a class."""
    if len(files) < count:
        raise InputError(f"{path}: class {name} has {len(files)} images, fewer than {count}; lower the option train")
    return files[:count]


def _pixels(path: Path, name: str, content: IO[bytes] | None) -> np.ndarray:
    """Return an image as uint8 (32, 32, 3)."""
    pixels = np.asarray(decoded(path, name, content))
    if pixels.shape != (SIZE, SIZE, 3):
        raise InputError(f"{path}: {name} is {pixels.shape[1]} x {pixels.shape[0]}, not {SIZE} x {SIZE}")
    return pixels
