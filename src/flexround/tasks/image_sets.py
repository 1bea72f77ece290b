"""Image sets small enough for one array, read from tars without unpacking: CIFAR-10 and photographs."""

import csv
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from flexround.io.artifacts import write_manifest
from flexround.tasks.image_training import TrainingImages
from flexround.tasks.images import ImageTask, of_hits, save_array
from flexround.tasks.options import PARTS, Cifar10Options, PhotographsOptions
from flexround.tasks.protocol import Evaluation, draw_indices

INDEX, LIST = "images.csv", "dataset.txt"


class ArrayTask(ImageTask):
    """A task with the files ``train_images.npy``, uint8 (N, H, W, 3), ``train_labels.npy``, and the same for val."""

    def save(self, out: Path, arrays: dict[str, np.ndarray]) -> None:
        """Write the named arrays, images uint8 (N, H, W, 3) and labels int64 (N,), and their manifest."""
        for name, array in arrays.items():
            save_array(out / f"{name}.npy", array)
        facts = self.options.model_dump(mode="json", exclude={"root"})
        write_manifest(out, [f"{name}.npy" for name in arrays], options=facts)

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training images without augmentation, uint8 (samples, H, W, 3), and their int64 indices."""
        images = np.load(data / "train_images.npy", mmap_mode="r")
        indices = draw_indices(len(images), samples, seed)
        return {"images": images[indices], "indices": indices}

    def training_images(self, data: Path) -> TrainingImages:
        return TrainingImages(np.load(data / "train_images.npy").__getitem__, np.load(data / "train_labels.npy"))


def tar_files(path: Path) -> dict[str, bytes]:
    """Return a tar's files by name, sorted."""
    with tarfile.open(path) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isfile())
        return dict(sorted((name, content.read()) for name, content in files if content))


def decoded(content: bytes) -> Image.Image:
    """Return a file's RGB image."""
    return Image.open(io.BytesIO(content)).convert("RGB")


class Cifar10(ArrayTask):
    """CIFAR-10: the test images for evaluation, and some training images for calibration."""

    options: Cifar10Options
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode the test images and some training images, equally many per class.

        A class's training images are taken at equal distances, because images of similar objects have neighbouring
        names.
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
    """Return a tar's images by class, in the order of their names. An image's folder is its class."""
    by_class: dict[str, list[bytes]] = {}
    for name, content in tar_files(path).items():
        by_class.setdefault(PurePosixPath(name).parent.name, []).append(content)
    return list(by_class.values())


class Photographs(ArrayTask):
    """Photographs: ``photographs.tar`` and ``validation.tar`` for evaluation, ``samples.tar`` for calibration."""

    options: PhotographsOptions

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return 3, self.options.size, self.options.size

    def prepare(self, out: Path, sources: Path) -> None:
        root, options = sources / self.options.root, self.options
        images, labels = read_samples(root / "samples.tar", options.size)
        val_images, val_labels = read_photographs(root / "photographs.tar", options.size)
        if options.more:
            more = read_validation(root / "validation.tar", options.size)
            val_images, val_labels = (np.concatenate(pair) for pair in zip((val_images, val_labels), more, strict=True))
        arrays = {"train_images": images, "train_labels": labels}
        self.save(out, arrays | {"val_images": val_images, "val_labels": val_labels})

    def evaluate(self, *arguments: Any, **keywords: Any) -> Evaluation:
        """Return top-1 and top-5 accuracy on all images, and top-1 accuracy on each of the two sets."""
        scores, count = super().evaluate(*arguments, **keywords).scores, self.options.val
        if self.options.more:
            scores |= dict(zip(PARTS, (scores["top1"][:count], scores["top1"][count:]), strict=True))
        return of_hits(scores)


def read_samples(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a tar of ``WNID_NAME.JPEG``, one image per class, with classes in the order of the WNIDs.

    Returns:
        uint8 (classes, size, size, 3) and int64 (classes,).
    """
    images = [content for name, content in tar_files(path).items() if name.lower().endswith(IMG_EXTENSIONS)]
    return _squares(images, size), np.arange(len(images))


def read_photographs(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a tar's photographs in the order of its index.

    Returns:
        uint8 (N, size, size, 3) and int64 (N,); the labels count classes from 0, the index from 1.
    """
    files = _by_last_name(path)
    rows = list(csv.DictReader(files[INDEX].decode().splitlines()))
    images = _squares([files[f"{row['ImageId']}.png"] for row in rows], size)
    return images, np.array([int(row["TrueLabel"]) - 1 for row in rows])


def read_validation(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a tar's images of ImageNet's validation set, listed with their labels in its ``dataset.txt``.

    Returns:
        uint8 (N, size, size, 3) and int64 (N,).
    """
    files = _by_last_name(path)
    rows = [line.split(", ") for line in files[LIST].decode().splitlines()]
    images = _squares([files[PurePosixPath(place).name] for place, _ in rows], size)
    return images, np.array([int(label) for _, label in rows])


def _by_last_name(path: Path) -> dict[str, bytes]:
    """Return a tar's files by the last component of their names."""
    return {PurePosixPath(name).name: content for name, content in tar_files(path).items()}


def _squares(files: Sequence[bytes], size: int) -> np.ndarray:
    """Return the images' central squares, resized by bicubic interpolation: uint8 (N, size, size, 3)."""
    squares = []
    for image in map(decoded, files):
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        square = image.crop((left, top, left + side, top + side))
        squares.append(np.asarray(square.resize((size, size), Image.Resampling.BICUBIC)))
    return np.stack(squares)
