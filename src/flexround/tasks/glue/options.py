"""What scales may set of a GLUE task. No torch here."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from flexround.settings.options import TaskSettings
from flexround.tasks.text.options import TextOptions, TrainSettings

Name = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]


class GlueOptions(TextOptions):
    """Options of ``Glue``."""

    name: Name
    root: Path = Field(Path("glue"), description="the data set: relative to the sources directory, or absolute")


TASKS = {"Glue": TaskSettings(GlueOptions, TrainSettings)}
