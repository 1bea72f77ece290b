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
    path, synchronised = tmp_path / "a/b/file.txt", []
    fsync, replace = os.fsync, os.replace

    def watched(number):
        synchronised.append((os.fstat(number).st_ino, os.fstat(number).st_size))
        fsync(number)

    def renamed(source, target):
        assert (os.stat(source).st_ino, os.stat(source).st_size) in synchronised
        assert not path.exists()
        assert source.parent == path.parent, "a rename is atomic within one file system only"
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", renamed)
    write_text(path, "new")
    assert len(synchronised) == 1
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_keeps_to_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "file.txt", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "file.txt").stat().st_mode & 0o777 == 0o666 & ~mask


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


def test_two_writers_of_a_file_do_not_meet(tmp_path):
    path = tmp_path / "file.txt"

    def slow(temporary):
        temporary.write_text("slow")
        write_text(path, "quick")
        assert temporary.read_text() == "slow"

    atomic_write(path, slow)
    assert path.read_text() == "slow"
    assert list(tmp_path.iterdir()) == [path]


# JSON


def test_json_is_byte_stable_and_refuses_what_is_not_finite(tmp_path):
    write_json(tmp_path / "a", {"x": 1, "y": [1.5, None]})
    write_json(tmp_path / "b", {"y": [1.5, None], "x": 1})
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="JSON"):
            write_json(tmp_path / "a", {"x": {"y": [value]}})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"x": 1, "y": [1.5, None]}
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text('{"x": 1'), Path.mkdir])
def test_missing_and_broken_json_name_the_file(tmp_path, make):
    make(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"a\.json: "):
        read_json(tmp_path / "a.json")


# manifests


@pytest.fixture
def listed(tmp_path):
    """Return a directory of two files and a manifest with every kind of value."""
    for name, text in (("one.bin", "11111"), ("two.bin", "22")):
        (tmp_path / name).write_text(text)
    recipe = {"a.bin": {"a": {"qmin": -8, "qmax": 7}}}
    write_manifest(tmp_path, ["one.bin", "two.bin"], recipe=recipe, rate=0.25, none=None, on=True, pair=(1, "x"))
    return tmp_path


def test_a_manifest_holds_sizes_hashes_and_facts(listed):
    manifest = read_manifest(listed)
    assert manifest["pair"] == [1, "x"]
    assert manifest["files"]["two.bin"] == {"bytes": 2, "sha256": sha256(listed / "two.bin")}
    before, facts = (listed / "manifest.json").read_bytes(), ("recipe", "rate", "none", "on", "pair")
    write_manifest(listed, ["two.bin", "one.bin"], **{key: manifest[key] for key in facts})
    assert (listed / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("edit", [lambda path: path.write_text("1111"), Path.unlink])
def test_truncated_and_missing_files_are_noticed(listed, edit, verify):
    edit(listed / "one.bin")
    with pytest.raises(InputError, match=r"one\.bin: "):
        read_manifest(listed, verify)


def test_changed_files_are_noticed_if_hashes_are_compared(listed):
    (listed / "one.bin").write_text("11101")
    assert read_manifest(listed, verify=False)["on"]
    with pytest.raises(InputError, match=r"one\.bin: its sha256"):
        read_manifest(listed)
