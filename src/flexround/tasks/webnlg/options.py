"""What scales may set of WebNLG: its data, the search for sentences, the training. No torch here."""

import dataclasses
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Count, Share
from flexround.tasks.text.options import LoraSettings, TextOptions, TrainSettings


@dataclasses.dataclass(frozen=True)
class Rules:
    """How to search; the defaults are the published ones.

    Attributes:
        beams: hypotheses carried on, at most the size of the vocabulary.
        length_penalty: a hypothesis scores its log probability over its length to this power (not negative).
        no_repeat_ngram: no sequence of so many generated tokens comes twice in one hypothesis.
        steps: tokens generated at most.
        positions: of prompt and generated tokens together; less if the model has less.
        eos: tokens that finish a hypothesis: GPT-2's end of text and its blank line.
    """

    beams: int = 10
    length_penalty: float = 0.8
    no_repeat_ngram: int = 4
    steps: int = 64
    positions: int = 512
    eos: tuple[int, ...] = (50256, 628)


class WebNLGOptions(TextOptions):
    """Options of ``WebNLG``; the defaults are those of microsoft/LoRA's examples/NLG."""

    root: Path = Field(Path("webnlg"), description="the data set: relative to the sources directory, or absolute")
    max_length: Count = Field(512, description="tokens of one input, of which a generated sentence is part")
    beams: Count = Field(Rules.beams, description="hypotheses that the search carries on")
    length_penalty: Annotated[float, Field(ge=0)] = Rules.length_penalty
    no_repeat_ngram: Count = Field(Rules.no_repeat_ngram, description="no so many tokens come twice in a sentence")
    steps: Count = Field(Rules.steps, description="tokens of a sentence")


class WebNLGTrainSettings(LoraSettings, TrainSettings):
    """``train`` settings of WebNLG; the defaults are those of microsoft/LoRA's released adapters."""

    label_smoothing: Share = 0.1


TASKS = {"WebNLG": TaskSettings(WebNLGOptions, WebNLGTrainSettings)}
