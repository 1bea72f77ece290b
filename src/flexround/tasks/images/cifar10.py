"""CIFAR-10 from two tars of images, one folder for each class: ``train/CLASS/IMAGE`` and ``test/CLASS/IMAGE``."""

import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from PIL import Image

from flexround.errors import InputError
from flexround.io.artifacts import write_manifest
from flexround.tasks.images.arrays import ArrayTask
from flexround.tasks.images.options import Cifar10Options
from flexround.tasks.images.task import save_array
from flexround.tasks.images.transforms import UNREADABLE

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
        for name, tar, count in (("train", "train.tar", options.train), ("val", "test.tar", None)):
            images, labels = read(root / tar, options.classes, count)
            if count is None and len(labels) != options.val:
                raise InputError(f"{root / tar}: {len(labels)} images instead of {options.val}; fetch it again")
            save_array(out / f"{name}_images.npy", images)
            save_array(out / f"{name}_labels.npy", labels)
        names = [f"{name}_{kind}.npy" for name in ("train", "val") for kind in ("images", "labels")]
        write_manifest(out, names, options=options.model_dump(mode="json", exclude={"root"}))


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
    try:
        with tarfile.open(path, "r:") as tar:
            members = {member.name: member for member in tar if member.isfile()}
            by_class: dict[str, list[str]] = {}
            for name in sorted(members):
                by_class.setdefault(PurePosixPath(name).parent.name, []).append(name)
            if len(by_class) != classes:
                raise InputError(f"{path}: {len(by_class)} classes instead of {classes}; fetch it again")
            if count is not None:
                by_class = {name: _first(path, name, files, count // classes) for name, files in by_class.items()}
            files = [file for of_class in by_class.values() for file in of_class]
            images = [_decoded(path, name, tar.extractfile(members[name])) for name in files]
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{path}: not a whole tar ({error}); fetch it again") from error
    labels = np.repeat(np.arange(classes), [len(of_class) for of_class in by_class.values()])
    return np.stack(images), labels.astype(np.int64)


def _first(path: Path, name: str, files: list[str], count: int) -> list[str]:
    """Return the first files of a class."""
    if len(files) < count:
        raise InputError(f"{path}: class {name} has {len(files)} images, fewer than {count}; lower the option train")
    return files[:count]


def _decoded(path: Path, name: str, content: IO[bytes] | None) -> np.ndarray:
    """Return an image as uint8 (32, 32, 3)."""
    try:
        pixels = np.asarray(Image.open(content).convert("RGB"))  # type: ignore[arg-type]
    except UNREADABLE as error:
        raise InputError(f"{path}: {name} can't be read ({error}); fetch the tar again") from error
    if pixels.shape != (SIZE, SIZE, 3):
        raise InputError(f"{path}: {name} is {pixels.shape[1]} x {pixels.shape[0]}, not {SIZE} x {SIZE}")
    return pixels
