"""``params/regress.yaml``: the runs that ``make regress`` makes again. No torch here."""

from pydantic import Field

from flexround.settings import validation
from flexround.settings.layout import PARAMS, Run
from flexround.settings.schema import Strict

SUBSET = PARAMS / "regress.yaml"


class Member(Strict):
    """Runs of one network."""

    task: str
    checkpoint: str
    recipes: tuple[str, ...] = Field(min_length=1)


class Subset(Strict):
    """``params/regress.yaml``."""

    networks: tuple[Member, ...]

    def runs(self, scale: str) -> list[Run]:
        """Return the first seed of each run."""
        return [Run(scale, one.task, one.checkpoint, recipe, 0) for one in self.networks for recipe in one.recipes]


def load() -> Subset:
    """Read the runs."""
    return validation.load(Subset, SUBSET)
