"""The options and training settings that a scale may give an image task. No torch here."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Batch, Count, Decay, Epochs, Factor, Positive, Seed, Share, Strict

Triple = tuple[float, float, float]
OfEpochs = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]


class ImageOptions(Strict):
    """What every image task may set."""

    mean: Triple = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)


class ImageNetOptions(ImageOptions):
    """Options of ``ImageNet``; the defaults are those of ILSVRC2012."""

    root: Path = Field(Path("imagenet"), description="the data set: relative to the sources directory, or absolute")
    classes: Count = 1000
    train_count: Count | None = Field(1_281_167, description="training images expected; null: any number")
    val_count: Count | None = Field(50_000, description="validation images expected; null: any number")
    resize: Count = Field(256, description="shorter side before the central crop")
    crop: Count = 224

    @model_validator(mode="after")
    def _possible(self) -> "ImageNetOptions":
        if self.crop > self.resize:
            raise ValueError(f"crop={self.crop} is larger than resize={self.resize}")
        return self


class Cifar10Options(ImageOptions):
    """Options of ``Cifar10``."""

    root: Path = Field(Path("cifar10"), description="directory of train.tar and test.tar, within the sources directory")
    classes: Count = 10
    train: Count = Field(10_000, description="training images kept, the same number of each class; to calibrate on")


class PhotographsOptions(ImageOptions):
    """Options of ``Photographs``; TensorFlow's EfficientNet-Lite takes (x - 127) / 128 of a pixel x."""

    mean: Triple = (127 / 255, 127 / 255, 127 / 255)
    std: tuple[Positive, Positive, Positive] = (128 / 255, 128 / 255, 128 / 255)
    root: Path = Field(Path("photographs"), description="of photographs.tar and samples.tar, within the sources")
    val: Count = Field(1000, description="number of photographs, by which metrics of the two sets are told apart")
    more: int = Field(0, ge=0, le=50_000, description="images of ImageNet's validation set in validation.tar; 0: none")
    size: Count = Field(224, description="side to which the central square of an image is resized")


class FinetuneSettings(Strict):
    """``checkpoints.NAME.train`` of an image task."""

    epochs: Epochs
    batch: Batch = 128
    lr: Factor = Field(description="peak learning rate")
    momentum: Share = 0.9
    nesterov: bool = False
    weight_decay: Decay = 0.0
    schedule: Literal["cosine", "step"] = "cosine"
    milestones: tuple[OfEpochs, ...] = Field((), description="epochs after which `step` lowers the rate")
    gamma: Positive = Field(0.1, description="factor of each milestone")
    warmup: OfEpochs = Field(0.0, description="epochs of linear warm-up")
    label_smoothing: Share = 0.0
    shift: int = Field(0, ge=0, le=10_000, description="random translation by up to so many pixels")
    seed: Seed = Field(0, description="of order, translations and dropout")


PARTS = ("top1_photographs", "top1_validation")  # of all images that are evaluated


def settings(
    options: type[ImageOptions], training: type[Strict] = FinetuneSettings, parts: tuple[str, ...] = ()
) -> TaskSettings:
    """Return the settings of an image task, none of which holds out training images."""
    return TaskSettings(options, training, lambda _: ("top1", "top5", *parts), heldout=False)


TASKS = {
    "ImageNet": settings(ImageNetOptions),
    "Cifar10": settings(Cifar10Options),
    "Photographs": settings(PhotographsOptions, parts=PARTS),
}
