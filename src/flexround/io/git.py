"""A part of one commit of a git repository, fetched with the command ``git``."""

import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from flexround.io.download import run

# Precede those of the repository and of the user: each file is the bytes of its blob.
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
# No links, no hooks; a connection that stands still for a minute is given up.
SETTINGS = {
    "core.symlinks": "false",
    "core.hooksPath": os.devnull,
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
}


def checkout(url: str, commit: str, paths: Sequence[str], directory: Path) -> Path:
    """Fetch files or directories of a commit, which is a hash of its content, without its history.

    Args:
        url: of the repository, whatever ``git fetch`` understands.
        commit: 40 hex digits.
        paths: within the repository, ``.`` for all of it; where the server can, nothing else is transferred.
        directory: for git's own files; must be new.

    Returns:
        The directory of the files, which lie there under their paths, without git's own.

    Raises:
        DownloadError: with git's reason.
    """
    tree = directory / "tree"
    tree.mkdir(parents=True)
    _git(tree, "init", "--quiet", "--template=")
    (tree / ".git/info").mkdir()
    (tree / ".git/info/attributes").write_text(ATTRIBUTES)
    _git(tree, "remote", "add", "origin", url)
    _git(tree, "fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", commit)
    _git(tree, "sparse-checkout", "set", "--no-cone", *("/*" if path == "." else f"/{path}" for path in paths))
    _git(tree, "checkout", "--quiet", "--detach", commit)
    shutil.rmtree(tree / ".git")
    return tree


def pack(tree: Path, path: str, out: Path) -> Path:
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
