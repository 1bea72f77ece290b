"""Sources of the kind git: a file, a directory or a packed directory of one commit of a local repository."""

import hashlib
import subprocess
import tarfile
from pathlib import Path

import pytest
import real_files
from pydantic import ValidationError

from flexround.errors import InputError
from flexround.io import sources
from flexround.settings.sources import Source

FILES = {"zoo/w.th": b"weights\r\n", "zoo/other.th": b"x", "train/ant/1.jpg": b"one", "train/bee/2.jpg": b"two"}


def run(repository, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


def commit(root, files):
    """Commit files, of which one may be a link, to a repository that is made if need be; return the commit."""
    if not root.exists():
        root.mkdir()
        run(root, "init", "--quiet")
        run(root, "config", "uploadpack.allowFilter", "true")
        run(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(content) if isinstance(content, Path) else (root / name).write_bytes(content)
    run(root, "add", *files)
    run(root, "commit", "--quiet", "-m", "files")
    return run(root, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of two commits, the wanted one and a later one with another file: its URL and both."""
    root = tmp_path_factory.mktemp("git") / "repository"
    return root.as_uri(), commit(root, FILES), commit(root, {"zoo/w.th": b"changed"})


def source(repository, path, **given):
    facts = {"kind": "checkpoint", "file": "place/it", "licence": "MIT", "revision": repository[1]}
    return Source(path=path, **{"location": f"git:{repository[0]}"} | facts | given)


def test_files_of_an_earlier_commit_are_fetched_as_they_are(repository, tmp_path):
    sources.fetch("w", source(repository, "zoo/w.th"), tmp_path)
    assert (tmp_path / "place/it").read_bytes() == FILES["zoo/w.th"]
    assert sorted(path.name for path in (tmp_path / "place").iterdir()) == ["it", "it.sha256"]
    sources.fetch("w", source(repository, "zoo", files=["w.th"]), tmp_path / "directory")
    assert [path.name for path in (tmp_path / "directory/place/it").iterdir()] == ["w.th"]


def test_a_packed_directory_has_the_hash_of_its_files(repository, tmp_path):
    packed = source(repository, "train", packed=True, bytes=6)
    found = sources.fetch("w", packed, tmp_path / "a")
    with tarfile.open(tmp_path / "a/place/it") as tar:
        assert tar.getnames() == ["train/ant/1.jpg", "train/bee/2.jpg"]
    (tmp_path / "b/place").mkdir(parents=True)
    with tarfile.open(tmp_path / "b/place/it", "w") as tar:  # by hand: directories, another order, other times
        for name in ("train", "train/bee", "train/ant"):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        for name in ("train/bee/2.jpg", "train/ant/1.jpg"):
            real_files.add(tar, name, FILES[name])
    assert sources.fetch("w", packed.model_copy(update={"sha256": found}), tmp_path / "b") == found


@pytest.mark.parametrize("given", [{"packed": True}, {"files": list(FILES)}])
def test_a_whole_repository_is_its_files_without_those_of_git(repository, tmp_path, given):
    lines = "".join(f"{hashlib.sha256(FILES[name]).hexdigest()}  {name}\n" for name in sorted(FILES))
    found = sources.fetch("w", source(repository, ".", **given, bytes=16), tmp_path)
    assert found == hashlib.sha256(lines.encode()).hexdigest()
    assert not (tmp_path / "place/it/.git").exists()


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        ("zoo/none", {}, "the commit has no zoo/none"),
        ("zoo/w.th", {"location": "git:file:///nowhere", "revision": "a" * 40}, "git fetch: fatal.*and put it at"),
    ],
)
def test_what_cannot_be_fetched_says_what_to_put_where(repository, tmp_path, path, given, message):
    with pytest.raises(InputError, match=message):
        sources.fetch("w", source(repository, path, **given), tmp_path)
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [
        {"path": None},
        {"revision": "main"},
        {"path": "../p"},
        *({"location": f"pypi:{text}", "revision": "a" * 64} for text in ("net>=1", "--pre==1", "net==1\n-r x")),
        {"location": "pypi:net==1"},
        {"location": "hub:owner/net"},
    ],
)
def test_git_and_wheels_need_a_path_and_a_whole_hash(given):
    facts = {"kind": "checkpoint", "location": "git:u", "path": "p", "file": "f", "licence": "l", "revision": "a" * 40}
    assert Source(**facts)
    with pytest.raises(ValidationError):
        Source(**facts | given)


def test_a_repository_changes_no_bytes(tmp_path):
    """Its attributes would change each file."""
    root, content = tmp_path / "repository", b"a\n$Id$\n"
    kinds = {"a": "text eol=crlf", "b": "ident", "c": "text working-tree-encoding=UTF-16"}
    commit(root, {f"zoo/{name}": content for name in kinds})
    attributes = "".join(f"{name} {kind}\n" for name, kind in kinds.items())
    wanted = commit(root, {".gitattributes": attributes.encode()})
    sources.fetch("w", source((root.as_uri(), wanted), "zoo", files=list(kinds)), tmp_path / "sources")
    assert [(tmp_path / "sources/place/it" / name).read_bytes() for name in kinds] == [content] * 3


def test_links_in_a_repository_lead_nowhere(tmp_path):
    root, secret = tmp_path / "repository", tmp_path / "secret"
    secret.write_text("somebody's")
    sources.fetch("w", source((root.as_uri(), commit(root, {"link": secret})), "link"), tmp_path / "sources")
    found = tmp_path / "sources/place/it"
    assert not found.is_symlink()
    assert found.read_text() == str(secret)
