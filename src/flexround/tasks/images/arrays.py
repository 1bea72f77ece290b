"""Image sets that are small enough to lie in one array, from tars that are not unpacked."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from flexround.io.artifacts import write_manifest
from flexround.tasks.images.task import ImageTask, save_array
from flexround.tasks.images.training import TrainingImages
from flexround.tasks.protocol import draw_indices


class ArrayTask(ImageTask):
    """A task whose data are ``train_images.npy``, uint8 (N, H, W, 3), and ``train_labels.npy``, and the same of val."""

    def save(self, out: Path, arrays: dict[str, np.ndarray]) -> None:
        """Write the data, images uint8 (N, H, W, 3) and labels int64 (N,) by name, and their manifest."""
        for name, array in arrays.items():
            save_array(out / f"{name}.npy", array)
        facts = self.options.model_dump(mode="json", exclude={"root"})
        write_manifest(out, [f"{name}.npy" for name in arrays], options=facts)

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training images as they are, uint8 (samples, H, W, 3), and their int64 indices."""
        images = np.load(data / "train_images.npy", mmap_mode="r")
        indices = draw_indices(len(images), samples, seed)
        return {"images": images[indices], "indices": indices}

    def training_images(self, data: Path) -> TrainingImages:
        """Return the training set, in memory."""
        return TrainingImages(np.load(data / "train_images.npy").__getitem__, np.load(data / "train_labels.npy"))


def tar_files(path: Path) -> dict[str, bytes]:
    """Return the files in a tar, by name and in the order of their names."""
    with tarfile.open(path) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isfile())
        return dict(sorted((name, content.read()) for name, content in files if content))


def decoded(content: bytes) -> Image.Image:
    """Return the RGB image that a file holds."""
    return Image.open(io.BytesIO(content)).convert("RGB")
