"""Files that are whole or absent; manifests."""

import errno
import functools
import itertools
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from forks import Fork, results
from safetensors import SafetensorError
from safetensors.numpy import save_file

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


def test_a_second_name_leaves_the_mode_of_the_original(tmp_path, monkeypatch):
    (tmp_path / "original").write_text("pinned")
    (tmp_path / "original").chmod(0o400)
    link(tmp_path / "original", tmp_path / "second")
    assert (tmp_path / "second").samefile(tmp_path / "original")
    assert (tmp_path / "original").stat().st_mode & 0o777 == 0o400
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(InputError, match=r"original: it is missing or may not be read"):
        link(tmp_path / "original", tmp_path / "out/third")
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_writer_left_is_deleted_by_the_next_one_and_that_of_a_living_one_is_not(tmp_path):
    path, other = tmp_path / "file.txt", tmp_path / ".other.txt.0123456789abcdef.txt"
    path.write_text("old")
    other.write_text("of another file")

    def killed(temporary):
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    assert Fork(lambda _: atomic_write(path, killed)).ended() == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 3

    def slow(temporary):
        temporary.write_text("slow")
        write_text(path, "quick")
        assert temporary.read_text() == "slow"
        assert set(tmp_path.iterdir()) == {path, temporary, other}

    atomic_write(path, slow)
    assert path.read_text() == "slow"
    assert set(tmp_path.iterdir()) == {path, other}


NO_ROOM = [OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)]
NO_ROOM += [
    OSError("1966080 requested and 1834880 written"),  # NumPy
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", [*NO_ROOM, ValueError("x"), KeyboardInterrupt(), OSError(errno.EIO, "y")], ids=repr)
@pytest.mark.parametrize("old", [None, "old"])
def test_a_full_or_read_only_disk_is_one_message_with_path_and_way_out(tmp_path, error, old):
    """Whatever a writer fails with, what was there stays; other errors stay as they are."""
    path = tmp_path / "file.txt"
    if old:
        path.write_text(old)

    def write(temporary):
        temporary.write_text("half")
        raise error

    with pytest.raises(InputError if error in NO_ROOM else type(error)) as caught:
        atomic_write(path, write)
    if error in NO_ROOM:
        reason = getattr(error, "strerror", None) or "No space left on device"
        way_out = "free space or choose a writable results directory"
        assert str(caught.value) == f"{path}: can't be written ({reason}); {way_out}"
    assert os.listdir(tmp_path) == (["file.txt"] if old else [])
    assert not old or path.read_text() == old


@pytest.mark.parametrize("below", ["file.txt", "deeper/file.txt"])
def test_a_file_in_the_place_of_a_directory_is_named(tmp_path, below):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match=r"file\.txt: can't be written"):
        write_text(tmp_path / "out" / below, "new")


def test_a_write_cut_off_by_the_system_leaves_what_was_there(tmp_path):
    """The limit on a file's size stands for a full disk; safetensors reports it without an error number."""
    path, array = tmp_path / "file", np.zeros(100_000, np.uint8)
    path.write_text("old")

    def limited(write):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(InputError) as caught:
            atomic_write(path, write)
        return str(caught.value)

    ways = (lambda temporary: save_file({"a": array}, temporary), lambda temporary: temporary.write_bytes(array))
    messages = results(*(functools.partial(limited, write) for write in ways))
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"{path}: can't be written (File too large)")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_text_that_utf_8_cannot_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.jsonl: .* is no text in UTF-8"):
        write_text(tmp_path / "a.jsonl", "a \ud800 b")


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


AGAIN = r"delete .*/a\.json and run the same command again"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, f"missing; {AGAIN}"),
        (lambda path: path.write_text('{"x": 1'), f"not valid JSON .*; {AGAIN}"),
        (lambda path: path.write_bytes(b'"\xff"'), f"byte 1 is not UTF-8; {AGAIN}"),
        (Path.mkdir, r"can't be read \(Is a directory\)"),
    ],
)
def test_missing_and_broken_json_name_the_file_and_the_way_out(tmp_path, make, message):
    make(tmp_path / "a.json")
    with pytest.raises(InputError, match=rf"a\.json: {message}"):
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
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda path: path.write_text("1111"), "4 bytes, its manifest says 5"),
        (Path.unlink, "missing although"),
        (lambda path: path.write_text("11101"), "its sha256 is not the one in its manifest"),
    ],
)
def test_truncated_missing_and_changed_files_are_noticed(listed, edit, message, verify):
    edit(listed / "one.bin")
    if "sha256" in message and not verify:
        assert read_manifest(listed, verify)["on"]
        return
    with pytest.raises(InputError, match=rf"one\.bin: {message}"):
        read_manifest(listed, verify)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "not ") for text in ("", "{", '{"format": 1}', '{"format": 1, "files": []}')),
        ('{"format": 2}', "its format is 2, this version reads 1"),
        ('{"format": "1"}', "its format is 1, this version reads 1"),
        *((text, "its format is none, this version reads 1") for text in ("{}", "[]")),
    ],
)
def test_something_else_in_the_place_of_a_manifest_is_refused(listed, text, message):
    (listed / "manifest.json").write_text(text)
    with pytest.raises(
        InputError, match=rf"manifest\.json: {message}.*; delete {listed} and run the same command again"
    ):
        read_manifest(listed)


def test_flipped_bits_of_a_manifest_are_noticed_or_change_nothing(listed):
    path = listed / "manifest.json"
    content, expected = path.read_bytes(), read_manifest(listed)
    refused, flips = 0, list(itertools.product(range(len(content)), range(8)))[::23]
    for position, bit in flips:
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            found = read_manifest(listed)
        except InputError:
            refused += 1
        else:
            assert {key: found[key] for key in expected} == expected, (position, bit)
    assert refused > 0.8 * len(flips)
