"""Files that are whole or absent; manifests."""

import errno
import itertools
import os
import signal
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from flexround.errors import InputError
from flexround.io.artifacts import (
    atomic_write,
    link,
    read_formatted,
    read_json,
    read_manifest,
    sha256,
    write_json,
    write_manifest,
    write_text,
)

# writing


def test_the_file_appears_whole_with_its_directories(tmp_path):
    path = tmp_path / "a/b/file.txt"

    def write(temporary):
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent == path.parent, "a rename is atomic within one file system only"

    atomic_write(path, write)
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.txt"]


def test_content_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, synchronised = tmp_path / "file.txt", []
    fsync, replace = os.fsync, os.replace

    def watched(number):
        synchronised.append((os.fstat(number).st_ino, os.fstat(number).st_size))
        fsync(number)

    def renamed(source, target):
        assert (os.stat(source).st_ino, os.stat(source).st_size) in synchronised
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", renamed)
    write_text(path, "new")
    assert len(synchronised) == 1
    assert path.read_text() == "new"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
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


def test_an_original_that_may_not_be_read_is_named_and_not_its_second_name(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(InputError, match=r"original: it is missing or may not be read"):
        link(tmp_path / "original", tmp_path / "out/second")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_a_writer_that_fails_leaves_what_was_there(tmp_path, error):
    def write(temporary):
        temporary.write_text("half")
        raise error

    for old in (None, "old"):
        path = tmp_path / f"{old}.txt"
        if old:
            path.write_text(old)
        with pytest.raises(type(error)):
            atomic_write(path, write)
        assert (path.read_text() if path.exists() else None) == old
    assert os.listdir(tmp_path) == ["old.txt"]


def test_what_a_killed_writer_left_is_deleted_by_the_next_one_and_that_of_a_living_one_is_not(tmp_path):
    path, other = tmp_path / "file.txt", tmp_path / ".other.txt.0123456789abcdef.txt"
    path.write_text("old")
    other.write_text("of another file")

    def killed(temporary):
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        atomic_write(path, killed)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
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


FULL = [
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    OSError("1966080 requested and 1834880 written"),  # NumPy
]
CODES = ("ENOSPC", "EDQUOT", "EACCES", "EROFS")


@pytest.mark.parametrize(
    "error", [OSError(getattr(errno, code), os.strerror(getattr(errno, code))) for code in CODES] + FULL, ids=str
)
def test_a_full_or_read_only_disk_is_one_message_with_path_and_way_out(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half")
        raise error

    with pytest.raises(InputError, match="free space or choose a writable results directory") as caught:
        atomic_write(path, write)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert ("No space left" in message) == any(part in str(error) for part in ("No space left", "requested"))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("below", ["file.txt", "deeper/file.txt"])
def test_a_file_in_the_place_of_a_directory_is_named(tmp_path, below):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match=r"file\.txt: can't be written"):
        write_text(tmp_path / "out" / below, "new")


def test_a_write_cut_off_by_the_system_leaves_what_was_there(tmp_path):
    """The limit on a file's size stands for a full disk; safetensors reports it without an error number."""
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from flexround.io import artifacts
from flexround.errors import InputError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
array = np.zeros(100_000, np.uint8)
for write in (lambda path: save_file({"a": array}, path), lambda path: path.write_bytes(array.tobytes())):
    try:
        artifacts.atomic_write(Path(sys.argv[1]), write)
    except InputError as error:
        print(error)
"""
    path = tmp_path / "file"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [done.stdout.splitlines()[0]] * 2, done.stderr
    assert f"{path}: can't be written (File too large)" in done.stdout
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


# JSON


def test_json_is_byte_stable_whatever_the_order_of_keys(tmp_path):
    write_json(tmp_path / "a", {"x": 1, "y": [1.5, None]})
    write_json(tmp_path / "b", {"y": [1.5, None], "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"x": 1, "y": [1.5, None]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_json_refuses_what_is_not_finite(tmp_path, value):
    write_json(tmp_path / "a", {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a", {"x": {"y": [value]}})
    assert read_json(tmp_path / "a") == {"x": 1}
    assert os.listdir(tmp_path) == ["a"]


def test_missing_and_broken_json_name_the_file_and_the_way_out(tmp_path):
    with pytest.raises(InputError, match=r"a\.json: missing; delete .* and run the same command again"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"x": 1')
    with pytest.raises(
        InputError, match=r"a\.json: not valid JSON .*; delete .*/a\.json and run the same command again"
    ):
        read_json(tmp_path / "a.json")


# manifests


@pytest.fixture
def listed(tmp_path):
    for name, text in (("one.bin", "11111"), ("two.bin", "22")):
        (tmp_path / name).write_text(text)
    write_manifest(tmp_path, ["one.bin", "two.bin"], seed=3)
    return tmp_path


def test_a_manifest_holds_sizes_hashes_and_facts(listed):
    manifest = read_manifest(listed)
    assert manifest["seed"] == 3
    assert manifest["files"]["two.bin"] == {"bytes": 2, "sha256": sha256(listed / "two.bin")}
    before = (listed / "manifest.json").read_bytes()
    write_manifest(listed, ["two.bin", "one.bin"], seed=3)
    assert (listed / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("verify", [True, False])
def test_truncated_and_missing_files_are_noticed(listed, verify):
    (listed / "one.bin").write_text("1111")
    with pytest.raises(InputError, match=r"one\.bin: 4 bytes, its manifest says 5"):
        read_manifest(listed, verify)
    (listed / "one.bin").unlink()
    with pytest.raises(InputError, match=r"one\.bin: missing although"):
        read_manifest(listed, verify)


def test_a_flipped_bit_is_noticed_by_its_hash(listed):
    (listed / "one.bin").write_text("11101")
    with pytest.raises(InputError, match=r"one\.bin: its sha256 is not the one in its manifest"):
        read_manifest(listed)
    assert read_manifest(listed, verify=False)["seed"] == 3


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"files": []}', '{"files": {"one.bin": 5}}'])
def test_something_else_in_the_place_of_a_manifest_is_refused(listed, text):
    (listed / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json"):
        read_manifest(listed)


@pytest.mark.parametrize(
    ("given", "named"), [({"format": 2}, "2"), ({"format": "1"}, "1"), ({}, "none"), (None, "none")]
)
def test_another_format_is_refused_by_name(listed, given, named):
    path = listed / "manifest.json"
    content = read_formatted(path)
    del content["format"]
    write_json(path, [1] if given is None else content | given)
    message = (
        rf"manifest\.json: its format is {named}, this version reads 1; delete {listed} and run the same command again"
    )
    for read in (lambda: read_formatted(path), lambda: read_manifest(listed)):
        with pytest.raises(InputError, match=message):
            read()


def small_manifest(directory):
    """Write a manifest of every kind of value."""
    (directory / "a.bin").write_bytes(b"1234")
    recipe = {"a.bin": {"a": {"qmin": -8, "qmax": 7}}}
    write_manifest(directory, ["a.bin"], recipe=recipe, rate=0.25, none=None, on=True, pair=(1, "x"))
    return directory / "manifest.json"


def test_flipped_bits_of_a_manifest_are_noticed_or_change_nothing(tmp_path):
    path = small_manifest(tmp_path)
    content, expected = path.read_bytes(), read_manifest(tmp_path)
    refused, flips = 0, list(itertools.product(range(len(content)), range(8)))[::9]
    for position, bit in flips:
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            found = read_manifest(tmp_path)
        except InputError:
            refused += 1
        else:
            assert {key: found[key] for key in expected} == expected, (position, bit)
    assert refused > 0.8 * len(flips)


def test_what_is_no_file_is_one_message(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(InputError, match=r"a\.json: can't be read \(Is a directory\)"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(b'"\xff"')
    with pytest.raises(InputError, match=r"b\.json: not valid JSON"):
        read_json(tmp_path / "b.json")
