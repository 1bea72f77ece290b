"""SQuAD at the mini scale: see ``flexround.mini.squad``."""

from pathlib import Path

from pydantic import NonNegativeInt

from flexround.mini import squad
from flexround.settings.schema import Count
from flexround.tasks.squad.task import Squad, SquadOptions
from flexround.tasks.text.task import Rows


class MiniSquadOptions(SquadOptions):
    """Options of ``MiniSquad``."""

    train: Count
    val: Count = 2_500
    seed: NonNegativeInt = 0


class MiniSquad(Squad):
    """Questions about the synthetic world, see ``flexround.mini.squad``."""

    Options = MiniSquadOptions
    options: MiniSquadOptions

    def rows(self, sources: Path) -> dict[str, Rows]:
        """Make both splits; nothing is read from ``sources``."""
        return squad.make(self.options.train, self.options.val, self.options.seed)
