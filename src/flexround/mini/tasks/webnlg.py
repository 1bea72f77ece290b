"""WebNLG at the mini scale: see ``flexround.mini.triples``."""

from pathlib import Path

from pydantic import Field, NonNegativeInt

from flexround.mini import triples
from flexround.settings.schema import Count
from flexround.tasks.text.task import Rows
from flexround.tasks.webnlg.task import WebNLG, WebNLGOptions


class MiniWebNLGOptions(WebNLGOptions):
    """Options of ``MiniWebNLG``."""

    train: Count = Field(description="contexts")
    test: Count = Field(description="contexts of seen categories, and as many of unseen ones")
    seed: NonNegativeInt = 0


class MiniWebNLG(WebNLG):
    """Sentences about the synthetic world, see ``flexround.mini.triples``."""

    Options = MiniWebNLGOptions
    options: MiniWebNLGOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make both splits; nothing is read from ``sources``."""
        return triples.make(self.options.train, self.options.test, self.options.seed)
