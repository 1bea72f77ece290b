"""A part of one commit of a git repository, fetched with the command ``git``."""

import os
import shutil
import tarfile
from pathlib import Path

from flexround.io.download import DownloadError, run
from flexround.settings.sources import Source

# Precede those of the repository and of the user: each file is the bytes of its blob.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
# No links, no hooks; a connection that stands still for a minute is given up.
SETTINGS = {
    "core.symlinks": "false",
    "core.hooksPath": os.devnull,
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
}


def fetch(source: Source, partial: Path) -> Path:
    """Fetch the wanted part of a commit, which is a hash of its content, without its history.

    Where the server can, nothing else is transferred.

    Returns:
        The file or directory, under its path in the repository and without git's own files, or the tar of a packed one.

    Raises:
        DownloadError: with git's reason, or the commit has no such part.
    """
    shutil.rmtree(partial, ignore_errors=True)
    tree, path = partial / "tree", source.path or "."
    wanted = [(Path(path) / file).as_posix() for file in source.files] or [path]
    tree.mkdir(parents=True)
    _git(tree, "init", "--quiet", "--template=")
    (tree / ".git/info").mkdir()
    (tree / ".git/info/attributes").write_text(ATTRIBUTES)
    _git(tree, "remote", "add", "origin", source.location.partition(":")[2])
    _git(tree, "fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", source.revision)
    _git(tree, "sparse-checkout", "set", "--no-cone", *("/*" if name == "." else f"/{name}" for name in wanted))
    _git(tree, "checkout", "--quiet", "--detach", source.revision)
    shutil.rmtree(tree / ".git")
    if not (tree / path).exists():
        raise DownloadError(f"the commit has no {path}")
    return _pack(tree, path, partial / "packed.tar") if source.packed else tree / path


def _pack(tree: Path, path: str, out: Path) -> Path:
    """Write the files below ``tree/path`` as the tar ``out`` and return it; their names are those in ``tree``."""
    with tarfile.open(out, "w") as tar:
        for file in sorted(file for file in (tree / path).rglob("*") if file.is_file()):
            entry = tarfile.TarInfo(file.relative_to(tree).as_posix())
            entry.size = file.stat().st_size
            with open(file, "rb") as content:
                tar.addfile(entry, content)
    return out


def _git(directory: Path, *arguments: str) -> None:
    """Run git; it asks nobody for a password.

    The user's configuration, which may name a proxy, applies. The caller's ``GIT_*`` do not: those of a hook lead into
    its own repository.
    """
    settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = outer | {"GIT_TERMINAL_PROMPT": "0"}
    run(f"git {arguments[0]}", ["git", *settings, *arguments], directory, environment)
