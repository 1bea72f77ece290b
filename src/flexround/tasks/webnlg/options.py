"""What scales may set of WebNLG: its data, the search for sentences, the training. No torch here."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Count, Share
from flexround.tasks.text.options import LoraSettings, TextOptions, TrainSettings


class WebNLGOptions(TextOptions):
    """Options of ``WebNLG``; the defaults are those of microsoft/LoRA's examples/NLG."""

    root: Path = Field(Path("webnlg"), description="the data set: relative to the sources directory, or absolute")
    max_length: Count = Field(512, description="tokens of one input, of which a generated sentence is part")
    beams: Count = Field(10, description="hypotheses that the search carries on")
    length_penalty: Annotated[float, Field(ge=0)] = 0.8
    no_repeat_ngram: Count = Field(4, description="no so many tokens come twice in a sentence")
    steps: Count = Field(64, description="tokens of a sentence")


class WebNLGTrainSettings(LoraSettings, TrainSettings):
    """``train`` settings of WebNLG; the defaults are those of microsoft/LoRA's released adapters."""

    label_smoothing: Share = 0.1


TASKS = {"WebNLG": TaskSettings(WebNLGOptions, WebNLGTrainSettings, lambda _: ("all", "seen", "unseen"))}
