"""CIFAR-10 from two tars of images, one folder for each class: ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``.

Or from the parquet files of the Hugging Face hub, ``plain_text/train-*`` and ``plain_text/test-*``, which are lossless.
"""

import io
from collections.abc import Callable
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

    An image's class is the folder it lies in. ``count`` images are kept, as many of each class, the first by name;
    None keeps all.

    Returns:
        uint8 (N, 32, 32, 3) and int64 (N,).

    Raises:
        InputError: it is no tar, has other classes or too few images, or an image is damaged or of another size.
    """
    with opened(path) as (tar, members):
        by_class: dict[object, list[str]] = {}
        for name in sorted(members):
            by_class.setdefault(PurePosixPath(name).parent.name, []).append(name)
        if len(by_class) != classes:
            raise InputError(f"{path}: {len(by_class)} classes instead of {classes}; fetch it again")
        return _arrays(path, by_class, count, lambda name: tar.extractfile(members[name]))


def read_parquet(path: Path, classes: int, count: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Decode the images of a split, class by class as ``read`` does, in the order of the rows.

    ``path`` is ``FOLDER/SPLIT``, of the files ``SPLIT-*.parquet`` with the columns ``img`` (``bytes`` of an image) and
    ``label`` (int); a missing or damaged one is an InputError too. Returned are uint8 (N, 32, 32, 3) and int64 (N,).
    """
    rows = [row for _, row in hub_files.table(path.parent, path.name, ["img", "label"])[1]]
    contents = {f"row {index}": row["img"] for index, row in enumerate(rows)}
    by_class: dict[object, list[str]] = {label: [] for label in range(classes)}
    for name, row in zip(contents, rows, strict=True):
        if row["label"] not in by_class:
            raise InputError(f"{path}: {name}: label {row['label']!r} of {classes} classes; fetch it again")
        by_class[row["label"]].append(name)
    return _arrays(path, by_class, count, lambda name: io.BytesIO(dict(contents[name] or {}).get("bytes", b"")))


def _arrays(
    path: Path, by_class: dict[object, list[str]], count: int | None, open_: Callable[[str], IO[bytes] | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of the first files of each class, ``count`` in all, or of all files."""
    kept = None if count is None else count // len(by_class)
    for of_class, names in by_class.items():
        if len(names) < (kept or 0):
            few = f"class {of_class} has {len(names)} images, fewer than {kept}"
            raise InputError(f"{path}: {few}; lower the option train")
    images: list[np.ndarray] = []
    for name in (name for names in by_class.values() for name in names[:kept]):
        images.append(np.asarray(decoded(path, name, open_(name))))
        if (shape := images[-1].shape) != (SIZE, SIZE, 3):
            raise InputError(f"{path}: {name} is {shape[1]} x {shape[0]}, not {SIZE} x {SIZE}")
    labels = np.repeat(np.arange(len(by_class)), [len(names[:kept]) for names in by_class.values()])
    return np.stack(images), labels.astype(np.int64)
