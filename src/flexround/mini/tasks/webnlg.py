"""WebNLG at the mini scale: see ``flexround.mini.triples``."""

from pathlib import Path

from flexround.mini import triples
from flexround.mini.tasks.options import MiniWebNLGOptions
from flexround.tasks.text.task import Rows
from flexround.tasks.webnlg.task import WebNLG


class MiniWebNLG(WebNLG):
    """Sentences about the synthetic world, see ``flexround.mini.triples``."""

    Options = MiniWebNLGOptions
    options: MiniWebNLGOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make both splits; nothing is read from ``sources``."""
        return triples.make(self.options.train, self.options.test, self.options.seed)
