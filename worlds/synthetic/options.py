"""What the scale pretraining may set of its tasks. No torch here."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from flexround.mini.options import DigitsOptions
from flexround.settings.options import TaskSettings
from flexround.settings.schema import Count
from flexround.tasks.options import FinetuneSettings, TextOptions, TrainSettings, settings


class UnevenSettings(FinetuneSettings):
    """``train`` settings of ``PretrainingDigits``: those of an image task, and two of its own."""

    high_biases: Annotated[float, Field(ge=0, le=1, description="share of channels that start far above zero")] = 0.0
    spread: Annotated[float, Field(ge=1, description="channels are scaled by up to this factor and its inverse")] = 1.0


class CorpusOptions(TextOptions):
    """Options of ``Corpus``."""

    objective: Literal["pretraining", "causal-lm"] = Field(description="kind of the head")
    texts: Count
    kinds: Literal["plain", "facts", "records"] = Field("plain", description="of lines (causal-lm)")
    vocabulary: Count
    verdicts: Annotated[float, Field(ge=0, description="weight of the loss on the quizzes' verdicts (causal-lm)")] = 1.0
    questions: Annotated[int, Field(ge=0, description="answered multiple-choice questions (packed causal-lm)")] = 0
    documents: Annotated[int, Field(ge=0, description="articles, see synthetic.articles (causal-lm)")] = 0
    packed: bool = Field(False, description="all is mixed, joined and cut into inputs of max_length (causal-lm)")
    tokenizer: Literal["wordpiece", "bpe", "bpe-begin"] = Field(description="see synthetic.tokenizers")
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.questions and not self.packed:
            raise ValueError(f"questions={self.questions}: most go on with the text before them; set packed: true")
        return self


TASKS = {
    "PretrainingDigits": settings(DigitsOptions, UnevenSettings),
    "Corpus": TaskSettings(CorpusOptions, TrainSettings),
}
