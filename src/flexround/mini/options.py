"""Options of the digits that scales may set. Imports no torch."""

from pydantic import Field, NonNegativeInt

from flexround.settings.schema import Count, Positive
from flexround.tasks.options import ImageOptions, Triple, settings


class DigitsOptions(ImageOptions):
    """Options of ``Digits``."""

    mean: Triple = (0.5, 0.5, 0.5)
    std: tuple[Positive, Positive, Positive] = (0.25, 0.25, 0.25)
    train: Count = Field(10_000, description="training images")
    val: Count = Field(2_500, description="validation images")
    seed: NonNegativeInt = Field(0, description="of the data set itself, not of a run")


TASKS = {"Digits": settings(DigitsOptions)}
