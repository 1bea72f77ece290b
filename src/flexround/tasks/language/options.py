"""What scales may set of language modelling. No torch here."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Count, Strict
from flexround.tasks.text.options import AdapterTrainSettings


class LanguageOptions(Strict):
    """Options of ``LanguageModelling``."""

    name: Literal["wikitext2", "ptb", "text"] = Field(description="text: any text file, whose last tenth validates")
    root: Path | None = Field(None, description="the corpus, relative to the sources directory; none: its name")
    block_size: Annotated[int, Field(ge=2)] = Field(1024, description="tokens of one input, at most the model's limit")
    joined: Count | None = Field(None, description="rows joined before they are cut; run_clm: 1000. None: all")
    heldout: int = Field(0, ge=0, description="first training rows, to choose settings by; never calibrated on")


class StoriesOptions(LanguageOptions):
    """Options of ``Stories``."""

    name: Literal["tinystories"] = "tinystories"  # type: ignore[assignment]
    root: Path = Field(Path("tinystories/tiny.utf8"), description="the text, relative to the sources directory")
    train: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="share of the stories to calibrate on")


TASKS = {
    "LanguageModelling": TaskSettings(LanguageOptions, AdapterTrainSettings, lambda _: ("ppl",)),
    "Stories": TaskSettings(StoriesOptions, AdapterTrainSettings, lambda _: ("ppl",)),
}
