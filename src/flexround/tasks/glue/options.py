"""What scales may set of a GLUE task. No torch here."""

from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, model_validator

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Samples
from flexround.tasks.text.options import TextOptions, TrainSettings

Name = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
# Metrics of the paper, first the one that settings are chosen by: name -> (metric, validation split).
METRICS = {name: {"acc": ("acc", "validation")} for name in get_args(Name)} | {
    "cola": {"matthews": ("matthews", "validation")},
    "stsb": {"pearson": ("pearson", "validation"), "spearman": ("spearman", "validation")},
    "qqp": {"f1": ("f1", "validation"), "acc": ("acc", "validation")},
    "mnli": {"acc_matched": ("acc", "validation_matched"), "acc_mismatched": ("acc", "validation_mismatched")},
}
RELEASED = ("cola", "sst2", "mrpc", "stsb")


class GlueOptions(TextOptions):
    """Options of ``Glue``."""

    name: Name
    root: Path = Field(Path("glue"), description="the data set: relative to the sources directory, or absolute")
    released: bool = Field(
        False, description="whether its files are those of its authors, tab-separated text; false: parquet of the hub"
    )
    train: Samples | None = Field(None, description="training rows, drawn at random; none: all")

    @model_validator(mode="after")
    def _of_a_known_layout(self) -> "GlueOptions":
        if self.released and self.name not in RELEASED:
            raise ValueError(f"released: {self.name} is read from parquet of the hub; released are {RELEASED}")
        return self


TASKS = {"Glue": TaskSettings(GlueOptions, TrainSettings, lambda options: METRICS[options.name])}
