"""What scales may set of SQuAD. No torch here."""

from pathlib import Path

from pydantic import Field

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Count
from flexround.tasks.text.options import TextOptions, TrainSettings


class SquadOptions(TextOptions):
    """Options of ``Squad``."""

    root: Path = Field(Path("squad"), description="the data set: relative to the sources directory, or absolute")
    doc_stride: Count = Field(128, description="tokens that neighbouring windows of a long context share")
    n_best: Count = Field(20, description="best starts and ends that are combined")
    max_answer_length: Count = Field(30, description="tokens of an answer")


TASKS = {"Squad": TaskSettings(SquadOptions, TrainSettings, lambda _: ("f1", "em"))}
