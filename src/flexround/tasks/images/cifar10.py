"""CIFAR-10 from two tars of images, one folder for each class: ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``."""

from pathlib import Path, PurePosixPath

import numpy as np

from flexround.tasks.images.arrays import ArrayTask, decoded, tar_files
from flexround.tasks.images.options import Cifar10Options


class Cifar10(ArrayTask):
    """CIFAR-10. The test images are what is evaluated; some training images are kept to calibrate on."""

    options: Cifar10Options
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode the test images and a part of the training images, as many of each class.

        The training images of a class are at equal distances: in the order of their names, kinds of a thing are
        neighbours.
        """
        root, count = sources / self.options.root, self.options.train // self.options.classes
        train, val = (read_tar(root / f"{split}.tar") for split in ("train", "test"))
        train = [[images[number * len(images) // count] for number in range(count)] for images in train]
        arrays: dict[str, np.ndarray] = {}
        for name, by_class in (("train", train), ("val", val)):
            arrays[f"{name}_images"] = np.stack([np.asarray(decoded(image)) for images in by_class for image in images])
            arrays[f"{name}_labels"] = np.repeat(np.arange(len(by_class)), [len(images) for images in by_class])
        self.save(out, arrays)


def read_tar(path: Path) -> list[list[bytes]]:
    """Return the images of a tar, class by class in the order of their names. The class is the folder of an image."""
    by_class: dict[str, list[bytes]] = {}
    for name, content in tar_files(path).items():
        by_class.setdefault(PurePosixPath(name).parent.name, []).append(content)
    return list(by_class.values())
