"""Language modelling at the mini scale: see ``flexround.mini.articles``."""

from pathlib import Path

from flexround.mini import articles
from flexround.mini.tasks.options import MiniLanguageOptions
from flexround.tasks.language.task import LanguageModelling
from flexround.tasks.text.task import Rows


class MiniLanguageModelling(LanguageModelling):
    """Perplexity on text of the synthetic world, see ``flexround.mini.articles``."""

    Options = MiniLanguageOptions
    options: MiniLanguageOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make both splits; nothing is read from ``sources``."""
        return articles.make(self.options.name, self.options.train, self.options.val, self.options.seed)
