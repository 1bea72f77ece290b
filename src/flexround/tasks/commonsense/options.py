"""What scales may set of common-sense reasoning. No torch here."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Count, Strict
from flexround.tasks.commonsense.choices import KINDS, Version
from flexround.tasks.text.options import AdapterTrainSettings

Block = Annotated[int, Field(ge=2)]


class CommonsenseOptions(Strict):
    """Options of ``Commonsense``."""

    name: Literal["commonsense"] = "commonsense"
    root: Path = Field(Path(), description="folder of commonsense, wikitext2 and c4 in the sources directory; none: it")
    calibration: Literal["paper", "release"] = Field(
        "paper", description="random blocks of random documents of C4, or release: the first blocks of the first 1 %"
    )
    shards: Count = Field(1, description="first shards of C4 that the random documents come from")
    documents: Count = Field(20_000, description="random documents that the random blocks are cut from")
    block_size: Block = Field(1024, description="tokens of a calibration sample, and of a block of the metric ppl")
    joined: Count | None = Field(None, description="rows joined before blocks of ppl are cut; run_clm: 1000. None: all")
    test_block: Block = Field(2048, description="tokens of a block of the metric ppl_TOKENS")
    prompts: Version = Field("0.3", description="version of lm-eval whose way of asking is followed")
    shots: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 5), description="few-shot examples; none asks no questions"
    )
    begin: bool = Field(True, description="the tokenizer must put one token before each text, as LLaMA's does")
    heldout: Literal[0] = Field(0, description="no rows to choose settings by")


class PosedOptions(CommonsenseOptions):
    """Options of ``PosedCommonsense``."""

    test_block: Block = Field(512, description="tokens of a block of the metric ppl; block_size: of a sample alone")
    test_blocks: Count = Field(32, description="first blocks of WikiText-2's test text, which ppl is measured on")
    questions: Count = Field(250, description="random questions of each data set, always the same; all if it has fewer")
    shots: tuple[Literal[0], ...] = Field(
        (0,), max_length=1, description="no few-shot examples, the files have none; none asks no questions"
    )


def _asked(options: CommonsenseOptions) -> Iterable[str]:
    """Return the names of the accuracies, and of the perplexity that both tasks have."""
    return (*(f"{name}_{shots}" if shots else name for name in KINDS for shots in options.shots), "ppl")


TASKS = {
    "Commonsense": TaskSettings(
        CommonsenseOptions, AdapterTrainSettings, lambda options: (*_asked(options), f"ppl_{options.test_block}")
    ),
    "PosedCommonsense": TaskSettings(PosedOptions, AdapterTrainSettings, _asked),
}
