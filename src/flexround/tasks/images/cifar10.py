"""CIFAR-10 from two tars of images, one folder for each class: ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``."""

import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from flexround.errors import InputError
from flexround.tasks.images.arrays import ArrayTask, decoded, opened
from flexround.tasks.images.options import Cifar10Options

SIZE = 32


class Cifar10(ArrayTask):
    """CIFAR-10. The test images are what is evaluated; some training images are kept to calibrate on."""

    options: Cifar10Options
    input_shape = (3, SIZE, SIZE)

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode the test images and a part of the training images, straight from the tars.

        Raises:
            InputError: a tar without images, with other classes or another number of images, or a damaged image.
        """
        root, options = sources / self.options.root, self.options
        images, labels = read(root / "train.tar", options.classes, options.train)
        val_images, val_labels = read(root / "test.tar", options.classes, None)
        if len(val_labels) != options.val:
            raise InputError(f"{root / 'test.tar'}: {len(val_labels)} images instead of {options.val}; fetch it again")
        arrays = {"train_images": images, "train_labels": labels}
        self.save(out, arrays | {"val_images": val_images, "val_labels": val_labels})


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
        images = [_pixels(path, tar, members[name]) for name in files]
    labels = np.repeat(np.arange(classes), [len(of_class) for of_class in by_class.values()])
    return np.stack(images), labels.astype(np.int64)


def _first(path: Path, name: str, files: list[str], count: int) -> list[str]:
    """Return the first files of a class."""
    if len(files) < count:
        raise InputError(f"{path}: class {name} has {len(files)} images, fewer than {count}; lower the option train")
    return files[:count]


def _pixels(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> np.ndarray:
    """Return an image as uint8 (32, 32, 3)."""
    pixels = np.asarray(decoded(path, tar, member))
    if pixels.shape != (SIZE, SIZE, 3):
        raise InputError(f"{path}: {member.name} is {pixels.shape[1]} x {pixels.shape[0]}, not {SIZE} x {SIZE}")
    return pixels
