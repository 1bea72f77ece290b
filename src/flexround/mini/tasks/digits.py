"""Image classification at the mini scale: see ``flexround.mini.digits``."""

from pathlib import Path

from pydantic import Field, NonNegativeInt

from flexround.artifacts import write_manifest
from flexround.mini import digits
from flexround.settings.schema import Count, Positive
from flexround.tasks.images.arrays import ArrayTask
from flexround.tasks.images.task import ImageOptions, Triple, save_array


class DigitsOptions(ImageOptions):
    """Options of ``Digits``."""

    mean: Triple = (0.5, 0.5, 0.5)
    std: tuple[Positive, Positive, Positive] = (0.25, 0.25, 0.25)
    train: Count = Field(10_000, description="training images")
    val: Count = Field(2_500, description="validation images")
    seed: NonNegativeInt = Field(0, description="of the data set itself, not of a run")


class Digits(ArrayTask):
    """The offline image set of the mini scale: the random warps that made its images are the augmentation."""

    Options = DigitsOptions
    options: DigitsOptions
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Make the data set; nothing is read from ``sources``."""
        arrays = digits.make(self.options.train, self.options.val, self.options.seed)
        for name, array in arrays.items():
            save_array(out / f"{name}.npy", array)
        write_manifest(out, [f"{name}.npy" for name in arrays], options=self.options.model_dump(mode="json"))
