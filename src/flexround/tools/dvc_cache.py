"""Compare DVC's copies of results with dvc.lock: name each file whose copy is missing or damaged.

DVC trusts its cache, and a checkout that lacks one file removes the whole directory it belongs to. So this runs after
``dvc fetch`` and before ``dvc checkout``. Damaged copies are deleted from the cache, to be fetched again.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, Field

from flexround.errors import InputError, look_up
from flexround.settings.validation import read_yaml, validate
from flexround.tools import cli

LOCK = Path("dvc.lock")
FAILED = 1
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}(\.dir)?$")]  # it becomes a path below the cache


class Out(BaseModel):
    """A file or directory that DVC stores, or a file of such a directory; the rest of its entry doesn't matter here."""

    path: str = Field(validation_alias=AliasChoices("path", "relpath"))
    md5: Md5


class Entry(BaseModel):
    """An entry of ``dvc.lock``."""

    outs: list[Out] = []


class Lock(BaseModel):
    """``dvc.lock``."""

    stages: dict[str, Entry]


class Listing(BaseModel):
    """What a stored directory holds."""

    files: list[Out]


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--cache", type=Path, default=Path(".dvc/cache"), help="what dvc cache dir says (.dvc/cache)"
    )
    arguments.add_argument("entries", nargs="*", help="stages of dvc.yaml, or groups of them; all if none is given")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each file whose copy is wrong; any ends it with 1.

    Raises:
        InputError: nothing has been published.
        SettingsError: an unknown entry, or a ``dvc.lock`` or a list of files that isn't DVC's.
    """
    if not LOCK.exists():
        raise InputError(f"{LOCK}: missing; nothing is published yet (make push)")
    stages = validate(Lock, read_yaml(LOCK), str(LOCK)).stages
    groups: dict[str, list[Out]] = {}
    for name, entry in stages.items():
        for key in {name, name.partition("@")[0]}:
            groups.setdefault(key, []).extend(entry.outs)
    outs = [out for name in arguments.entries or stages for out in look_up(f"{LOCK}: entry", groups, name)]
    objects = arguments.cache / "files" / "md5"
    problems = [problem for out in outs for problem in _problems(objects, out.path, out.md5)]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    if problems:
        sys.stdout.write(
            f"{len(problems)} copies missing or damaged: make pull again; what is still named then is damaged in the "
            "remote: overwrite it there with the copy in .dvc/cache of a clone that is whole\n"
        )
        sys.exit(FAILED)


def _problems(objects: Path, path: str, md5: str) -> Iterator[str]:
    """Yield what is wrong with the copy of a file, or of a directory and the files in it."""
    copy = objects / md5[:2] / md5[2:]
    if not copy.exists():
        yield f"{path}: no whole copy, files/md5/{md5[:2]}/{md5[2:]} could not be fetched"
    elif hashlib.md5(copy.read_bytes(), usedforsecurity=False).hexdigest() != md5.removesuffix(".dir"):
        copy.unlink()
        yield f"{path}: damaged, its copy files/md5/{md5[:2]}/{md5[2:]} has another md5"
    elif md5.endswith(".dir"):
        for file in validate(Listing, {"files": json.loads(copy.read_text())}, f"{path} in {objects}").files:
            yield from _problems(objects, f"{path}/{file.path}", file.md5)


if __name__ == "__main__":
    cli.main(run, parser())
