"""Language modelling at the mini scale: see ``flexround.mini.articles``."""

from pathlib import Path

from pydantic import Field, NonNegativeInt

from flexround.mini import articles
from flexround.settings.schema import Count
from flexround.tasks.language.task import LanguageModelling, LanguageOptions
from flexround.tasks.text.task import Rows


class MiniLanguageOptions(LanguageOptions):
    """Options of ``MiniLanguageModelling``."""

    train: Count = Field(description="articles, or the Penn Treebank's sentences")
    val: Count
    seed: NonNegativeInt = 0


class MiniLanguageModelling(LanguageModelling):
    """Perplexity on text of the synthetic world, see ``flexround.mini.articles``."""

    Options = MiniLanguageOptions
    options: MiniLanguageOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make both splits; nothing is read from ``sources``."""
        return articles.make(self.options.name, self.options.train, self.options.val, self.options.seed)
