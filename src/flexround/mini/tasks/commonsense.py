"""Common-sense reasoning at the mini scale: see ``flexround.mini.choices`` and ``flexround.mini.articles``."""

from pathlib import Path

from flexround.mini import articles, choices
from flexround.mini.tasks.options import MiniCommonsenseOptions
from flexround.tasks.commonsense.choices import KINDS
from flexround.tasks.commonsense.task import Commonsense, check_shots
from flexround.tasks.text.task import Rows


class MiniCommonsense(Commonsense):
    """The same on the synthetic world, see ``flexround.mini.choices`` and ``flexround.mini.articles``."""

    Options = MiniCommonsenseOptions
    options: MiniCommonsenseOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make all splits; nothing is read from ``sources``."""
        options = self.options
        made: dict[str, Rows] = {}
        for name in KINDS:
            split = choices.make(name, options.examples, options.questions, options.seed)
            made |= {name: split["test"], f"{name}-train": split["train"]}
        texts = articles.make("wikitext2", options.val, options.val, options.seed)
        made |= {"validation": texts["validation"], "test": texts["train"]}
        made["train"] = articles.documents(options.documents, options.seed)
        check_shots(made, max(options.shots))
        return made
