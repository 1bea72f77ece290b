"""What the mini scale may set of its tasks. No torch here."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from flexround.settings.schema import Count, Positive
from flexround.tasks.commonsense.options import CommonsenseOptions
from flexround.tasks.glue.options import Name
from flexround.tasks.images.options import FinetuneSettings, ImageOptions, Triple
from flexround.tasks.language.options import LanguageOptions
from flexround.tasks.squad.options import SquadOptions
from flexround.tasks.text.options import TextOptions
from flexround.tasks.webnlg.options import WebNLGOptions


class DigitsOptions(ImageOptions):
    """Options of ``Digits``."""

    mean: Triple = (0.5, 0.5, 0.5)
    std: tuple[Positive, Positive, Positive] = (0.25, 0.25, 0.25)
    train: Count = Field(10_000, description="training images")
    val: Count = Field(2_500, description="validation images")
    seed: NonNegativeInt = Field(0, description="of the data set itself, not of a run")


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
    documents: Annotated[int, Field(ge=0, description="articles, see flexround.mini.articles (causal-lm)")] = 0
    packed: bool = Field(False, description="all is mixed, joined and cut into inputs of max_length (causal-lm)")
    tokenizer: Literal["wordpiece", "bpe", "bpe-begin"] = Field(description="see flexround.mini.tokenizers")
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.questions and not self.packed:
            raise ValueError(f"questions={self.questions}: most go on with the text before them; set packed: true")
        return self


class MiniGlueOptions(TextOptions):
    """Options of ``MiniGlue``."""

    name: Name
    train: Count
    val: Count = Field(2_500, description="rows of each validation split")
    seed: NonNegativeInt = 0


class MiniSquadOptions(SquadOptions):
    """Options of ``MiniSquad``."""

    train: Count
    val: Count = 2_500
    seed: NonNegativeInt = 0


class MiniLanguageOptions(LanguageOptions):
    """Options of ``MiniLanguageModelling``."""

    train: Count = Field(description="articles, or the Penn Treebank's sentences")
    val: Count
    seed: NonNegativeInt = 0


class MiniWebNLGOptions(WebNLGOptions):
    """Options of ``MiniWebNLG``."""

    train: Count = Field(description="contexts")
    test: Count = Field(description="contexts of seen categories, and as many of unseen ones")
    seed: NonNegativeInt = 0


class MiniCommonsenseOptions(CommonsenseOptions):
    """Options of ``MiniCommonsense``."""

    documents: Count = Field(description="articles in place of C4's documents")
    val: Count = Field(description="articles of each split of WikiText-2")
    questions: Count = Field(description="of each data set")
    examples: int = Field(0, ge=0, description="that few-shot examples are drawn from")
    seed: NonNegativeInt = 0
