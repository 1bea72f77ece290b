"""Image sets that are small enough to lie in one array, from tars that are not unpacked."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from flexround.errors import InputError
from flexround.io.artifacts import write_manifest
from flexround.tasks.images.task import ImageTask, save_array
from flexround.tasks.images.training import TrainingImages
from flexround.tasks.images.transforms import UNREADABLE
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
    """Return the files in a tar by name. Raises InputError if it is missing, damaged or no tar."""
    try:
        with tarfile.open(path, "r:") as tar:
            files = ((member.name, tar.extractfile(member)) for member in tar if member.isfile())
            return {name: content.read() for name, content in files if content}
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"{path}: not a whole tar ({error}); fetch it again") from error


def decoded(path: Path, name: str, content: bytes) -> Image.Image:
    """Return the RGB image in a file of the tar or table at ``path``. Raises InputError if it is damaged or none."""
    try:
        return Image.open(io.BytesIO(content)).convert("RGB")
    except UNREADABLE as error:
        raise InputError(f"{path}: {name} can't be read ({error}); fetch it again") from error
