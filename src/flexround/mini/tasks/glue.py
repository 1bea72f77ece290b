"""GLUE at the mini scale: see ``flexround.mini.glue``."""

from pathlib import Path

from pydantic import Field, NonNegativeInt

from flexround.mini import glue
from flexround.settings.schema import Count
from flexround.tasks.glue.task import Glue, Name
from flexround.tasks.text.task import Rows, TextOptions


class MiniGlueOptions(TextOptions):
    """Options of ``MiniGlue``."""

    name: Name
    train: Count
    val: Count = Field(2_500, description="rows of each validation split")
    seed: NonNegativeInt = 0


class MiniGlue(Glue):
    """A GLUE task made from the synthetic world, see ``flexround.mini.glue``."""

    Options = MiniGlueOptions
    options: MiniGlueOptions  # type: ignore[assignment]

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make the splits; nothing is read from ``sources``."""
        return glue.make(self.options.name, self.options.train, self.options.val, self.options.seed)
