"""Image classification at the mini scale: see ``flexround.mini.digits``."""

from pathlib import Path

from flexround.mini import digits
from flexround.mini.tasks.options import DigitsOptions
from flexround.tasks.images.arrays import ArrayTask


class Digits(ArrayTask):
    """The offline image set of the mini scale: the random warps that made its images are the augmentation."""

    options: DigitsOptions
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Make the data set; nothing is read from ``sources``."""
        self.save(out, digits.make(self.options.train, self.options.val, self.options.seed))
