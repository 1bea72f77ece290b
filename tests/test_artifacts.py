"""Files that are whole or absent; manifests."""

import errno
import os
from pathlib import Path

import pytest

from flexround.errors import InputError
from flexround.io.artifacts import (
    atomic_write,
    link,
    read_json,
    read_manifest,
    sha256,
    write_json,
    write_manifest,
    write_text,
)

# writing


def test_content_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, synchronised, fsync, replace = tmp_path / "a/file.txt", [], os.fsync, os.replace

    def renamed(source, target):
        assert synchronised == [os.stat(source).st_size]
        assert source.parent == path.parent, "a rename is atomic within one file system only"
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda number: [synchronised.append(os.fstat(number).st_size), fsync(number)])
    monkeypatch.setattr(os, "replace", renamed)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_second_name_leaves_the_mode_of_the_original(tmp_path):
    (tmp_path / "original").write_text("pinned")
    (tmp_path / "original").chmod(0o400)
    link(tmp_path / "original", tmp_path / "second")
    assert (tmp_path / "second").samefile(tmp_path / "original")
    assert (tmp_path / "original").stat().st_mode & 0o777 == 0o400


def test_what_was_there_stays_where_a_write_fails(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, write)
    assert os.listdir(tmp_path) == ["file.txt"]
    assert path.read_text() == "old"


# JSON


def test_json_is_byte_stable_and_refuses_what_is_not_finite(tmp_path):
    write_json(tmp_path / "a", {"x": 1, "y": [1.5, None]})
    write_json(tmp_path / "b", {"y": [1.5, None], "x": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a", {"x": {"y": [float("nan")]}})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"x": 1, "y": [1.5, None]}
    (tmp_path / "a").write_text('{"x": 1')
    with pytest.raises(InputError, match="a: not valid JSON"):
        read_json(tmp_path / "a")


# manifests


@pytest.fixture
def listed(tmp_path):
    """Return a directory of two files and a manifest."""
    for name, text in (("one.bin", "11111"), ("two.bin", "22")):
        (tmp_path / name).write_text(text)
    write_manifest(tmp_path, ["one.bin", "two.bin"], rate=0.25, pair=(1, "x"))
    return tmp_path


def test_a_manifest_holds_sizes_hashes_and_facts(listed):
    manifest = read_manifest(listed)
    assert (manifest["rate"], manifest["pair"]) == (0.25, [1, "x"])
    assert manifest["files"]["two.bin"] == {"bytes": 2, "sha256": sha256(listed / "two.bin")}


def changed(path):
    path.write_text("11101")


@pytest.mark.parametrize(
    ("edit", "verify"),
    [(Path.unlink, False), (lambda path: path.write_text("1111"), False), (changed, True)],
)
def test_missing_truncated_and_changed_files_are_noticed(listed, edit, verify):
    """A changed file of equal size is noticed only if hashes are compared."""
    edit(listed / "one.bin")
    with pytest.raises(InputError, match=r"one\.bin: "):
        read_manifest(listed, verify)
    if verify:
        read_manifest(listed, verify=False)
