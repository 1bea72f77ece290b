"""Compare DVC's copies of results with dvc.lock: name each file whose copy is missing or damaged.

DVC trusts its cache: if one file is missing, a checkout removes the file's whole directory; if a list of files contains
``../x``, a checkout writes outside the directory. So run this tool after ``dvc fetch`` and before ``dvc checkout``.
Damaged copies are deleted from the cache, so that DVC fetches them again.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from dvc.repo import Repo

from flexround.errors import InputError
from flexround.tools import cli

FAILED = 1


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("entries", nargs="*", help="stages of dvc.yaml, or groups of them; all if none is given")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each file with a wrong copy; any such file gives exit code 1."""
    with Repo() as repo:
        objects = Path(repo.cache.local.path)
        outs = {str(out): out.hash_info.value for out in repo.index.targets_view(arguments.entries or None).outs}
    if not any(outs.values()):
        raise InputError("dvc.lock: missing or empty; nothing is published yet (make push)")
    problems = [problem for path, md5 in outs.items() if md5 for problem in _problems(objects, path, md5)]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    if problems:
        sys.stdout.write(
            f"{len(problems)} copies missing or damaged: make pull again; what is still named then is damaged in the "
            "remote: overwrite it there with the copy in .dvc/cache of a clone that is whole\n"
        )
        sys.exit(FAILED)


def _problems(objects: Path, path: str, md5: str) -> Iterator[str]:
    """Yield the problems with the copy of a file, or of a directory and its files."""
    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5):  # the hash becomes a path below the cache
        raise InputError(f"dvc.lock: {path} has {md5!r} for an md5; take a dvc.lock that DVC wrote")
    copy = objects / md5[:2] / md5[2:]
    if not copy.exists():
        yield f"{path}: no whole copy, files/md5/{md5[:2]}/{md5[2:]} could not be fetched"
    elif hashlib.md5(copy.read_bytes(), usedforsecurity=False).hexdigest() != md5.removesuffix(".dir"):
        copy.unlink()
        yield f"{path}: damaged, its copy files/md5/{md5[:2]}/{md5[2:]} has another md5"
    elif md5.endswith(".dir"):
        for file in json.loads(copy.read_text()):
            _refuse_outside(Path(path), file["relpath"])
            yield from _problems(objects, f"{path}/{file['relpath']}", file["md5"])


def _refuse_outside(directory: Path, name: str) -> None:
    """Raise InputError if DVC would write a file of ``directory`` elsewhere: by its name, or through a link."""
    inside = (directory / name).parent.resolve().is_relative_to(directory.resolve())
    if not inside or {"", ".", ".."} & set(name.split("/")):
        raise InputError(f"{directory}: its list of files has {name!r}, which leads out of it; use another remote")


if __name__ == "__main__":
    cli.main(run, parser())
