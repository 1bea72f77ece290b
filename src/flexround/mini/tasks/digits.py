"""Image classification at the mini scale: see ``flexround.mini.digits``."""

from pathlib import Path

import numpy as np
from pydantic import Field, NonNegativeInt

from flexround.artifacts import read_manifest, write_manifest
from flexround.mini import digits
from flexround.settings.schema import Count, Positive
from flexround.tasks.images.task import FULL_SCALE, ImageOptions, ImageTask, Triple, save_array
from flexround.tasks.images.training import ArrayImages, TrainingImages
from flexround.tasks.protocol import draw_indices


class DigitsOptions(ImageOptions):
    """Options of ``Digits``."""

    mean: Triple = (0.5, 0.5, 0.5)
    std: tuple[Positive, Positive, Positive] = (0.25, 0.25, 0.25)
    train: Count = Field(10_000, description="training images")
    val: Count = Field(2_500, description="validation images")
    seed: NonNegativeInt = Field(0, description="of the data set itself, not of a run")


class Digits(ImageTask):
    """The offline image set of the mini scale, see ``flexround.mini.digits``."""

    Options = DigitsOptions
    options: DigitsOptions
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Make the data set; nothing is read from ``sources``."""
        arrays = digits.make(self.options.train, self.options.val, self.options.seed)
        for name, array in arrays.items():
            save_array(out / f"{name}.npy", array)
        write_manifest(out, [f"{name}.npy" for name in arrays], options=self.options.model_dump(mode="json"))

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training images as they are; the random warps that made them are the augmentation."""
        read_manifest(data, verify=False)
        images = np.load(data / "train_images.npy", mmap_mode="r")
        indices = draw_indices(len(images), samples, seed)
        return {"images": images[indices], "indices": indices}

    def training_images(self, data: Path, whole: bool) -> TrainingImages:
        """Return the training set, in memory."""
        read_manifest(data, verify=False)
        return ArrayImages(np.load(data / "train_images.npy"), np.load(data / "train_labels.npy"), FULL_SCALE)
