"""SQuAD at the mini scale: see ``flexround.mini.squad``."""

from pathlib import Path

from flexround.mini import squad
from flexround.mini.tasks.options import MiniSquadOptions
from flexround.tasks.squad.task import Squad
from flexround.tasks.text.task import Rows


class MiniSquad(Squad):
    """Questions about the synthetic world, see ``flexround.mini.squad``."""

    Options = MiniSquadOptions
    options: MiniSquadOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make both splits; nothing is read from ``sources``."""
        return squad.make(self.options.train, self.options.val, self.options.seed)
