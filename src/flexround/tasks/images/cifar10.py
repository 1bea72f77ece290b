"""CIFAR-10 from two tars of images, one folder for each class: ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``."""

from pathlib import Path, PurePosixPath

import numpy as np

from flexround.errors import InputError
from flexround.tasks.images.arrays import ArrayTask, decoded, tar_files
from flexround.tasks.images.options import Cifar10Options

SIZE = 32
Stored = tuple[str, bytes]  # name and content of an image


class Cifar10(ArrayTask):
    """CIFAR-10. The test images are what is evaluated; some training images are kept to calibrate on."""

    options: Cifar10Options
    input_shape = (3, SIZE, SIZE)

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode the test images and a part of the training images, as many of each class.

        Raises:
            InputError: a source without images, with other classes or another number of images, or a damaged image.
        """
        root, options = sources / self.options.root, self.options
        arrays: dict[str, np.ndarray] = {}
        for name, split in (("train", "train"), ("val", "test")):
            path = root / f"{split}.tar"
            by_class = read_tar(path, options.classes)
            if name == "train":
                by_class = [_spread(images, path, options.train // options.classes) for images in by_class]
            elif (count := sum(map(len, by_class))) != options.val:
                raise InputError(f"{path}: {count} images instead of {options.val}; fetch it again")
            arrays[f"{name}_images"] = np.stack([_pixels(path, *image) for images in by_class for image in images])
            arrays[f"{name}_labels"] = np.repeat(np.arange(options.classes), [len(images) for images in by_class])
        self.save(out, arrays)


def read_tar(path: Path, classes: int) -> list[list[Stored]]:
    """Return the images of a tar, class by class in the order of their names. The class is the folder of an image.

    Raises:
        InputError: it is no tar, or has other classes.
    """
    by_class: dict[str, list[Stored]] = {}
    for name, content in sorted(tar_files(path).items()):
        by_class.setdefault(PurePosixPath(name).parent.name, []).append((name, content))
    if len(by_class) != classes:
        raise InputError(f"{path}: {len(by_class)} classes instead of {classes}; fetch it again")
    return list(by_class.values())


def _spread(images: list[Stored], path: Path, count: int) -> list[Stored]:
    """Return images of a class at equal distances: in the order of their names, kinds of a thing are neighbours."""
    if len(images) < count:
        raise InputError(f"{path}: a class has {len(images)} images, fewer than {count}; lower the option train")
    return [images[number * len(images) // count] for number in range(count)]


def _pixels(path: Path, name: str, content: bytes) -> np.ndarray:
    """Return an image, uint8 (32, 32, 3)."""
    image = np.asarray(decoded(path, name, content))
    if image.shape != (SIZE, SIZE, 3):
        raise InputError(f"{path}: {name} is {image.shape[1]} x {image.shape[0]}, not {SIZE} x {SIZE}")
    return image
