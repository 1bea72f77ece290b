"""GLUE at the mini scale: see ``flexround.mini.glue``."""

from pathlib import Path

from flexround.mini import glue
from flexround.mini.tasks.options import MiniGlueOptions
from flexround.tasks.glue.task import Glue
from flexround.tasks.text.task import Rows


class MiniGlue(Glue):
    """A GLUE task made from the synthetic world, see ``flexround.mini.glue``."""

    Options = MiniGlueOptions
    options: MiniGlueOptions  # type: ignore[assignment]

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make the splits; nothing is read from ``sources``."""
        return glue.make(self.options.name, self.options.train, self.options.val, self.options.seed)
