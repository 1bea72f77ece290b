"""Image classification at the mini scale: see ``flexround.mini.digits``."""

from pathlib import Path

from flexround.io.artifacts import write_manifest
from flexround.mini import digits
from flexround.mini.tasks.options import DigitsOptions
from flexround.tasks.images.arrays import ArrayTask
from flexround.tasks.images.task import save_array


class Digits(ArrayTask):
    """The offline image set of the mini scale: the random warps that made its images are the augmentation."""

    options: DigitsOptions
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Make the data set; nothing is read from ``sources``."""
        arrays = digits.make(self.options.train, self.options.val, self.options.seed)
        for name, array in arrays.items():
            save_array(out / f"{name}.npy", array)
        write_manifest(out, [f"{name}.npy" for name in arrays], options=self.options.model_dump(mode="json"))
