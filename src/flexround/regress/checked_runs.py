"""``params/regress.yaml``: families of tasks, and the runs of each that ``make regress`` makes again. No torch here."""

import fnmatch
from typing import Annotated

from pydantic import Field

from flexround.errors import SettingsError
from flexround.settings import validation
from flexround.settings.layout import PARAMS, Run
from flexround.settings.schema import Count, Strict

SUBSET = PARAMS / "regress.yaml"


class Member(Strict):
    """Runs of one network."""

    task: str
    checkpoint: str
    recipes: tuple[str, ...] = Field(min_length=1)
    spread: tuple[str, ...] = Field((), description="further recipes that are run for their spread alone")


class RunFamily(Strict):
    """Tasks whose spread is pooled."""

    tasks: tuple[str, ...] = Field(description="may hold * as in file names")
    runs: tuple[Member, ...] = Field((), description="none: its tables are compared as a whole alone")


class Subset(Strict):
    """``params/regress.yaml``."""

    seeds: Annotated[Count, Field(ge=2, description="of every quantized run, from which spreads are measured")]
    families: dict[str, RunFamily]

    def members(self) -> list[Member]:
        """Return the members of all families."""
        return [member for family in self.families.values() for member in family.runs]

    def runs(self, scale: str) -> list[Run]:
        """Return what is made again: the first seed of each run."""
        return [Run(scale, one.task, one.checkpoint, recipe, 0) for one in self.members() for recipe in one.recipes]

    def family(self, task: str) -> str:
        """Return the family of a task.

        Raises:
            SettingsError: it is in none.
        """
        for name, family in self.families.items():
            if any(fnmatch.fnmatchcase(task, pattern) for pattern in family.tasks):
                return name
        raise SettingsError(f"{SUBSET}: task {task!r} is in no family; add it to `tasks` of one")


def load() -> Subset:
    """Read the families."""
    return validation.load(Subset, SUBSET)
