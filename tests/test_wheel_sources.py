"""Sources of the kind pypi: a member of a wheel, or files of a zip in it; pip finds the wheel in a directory."""

import hashlib
import io
import zipfile

import pytest

from flexround.errors import InputError
from flexround.io import sources
from flexround.settings.sources import Source

NET = b"weights" * 1000
INNER = {"config.json": b"{}", "sub/net.bin": NET, "other.bin": b"x", "../evil": b"y"}
INFO = {"METADATA": "Metadata-Version: 2.1\nName: tiny-net\nVersion: 1.0\nRequires-Dist: nothing-like-this\n"}
INFO |= {"WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "RECORD": ""}


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The sha256 of a wheel in a directory, where pip looks instead of at an index, which refuses connections."""
    members = {"net/net.bin": NET, "net/model.zip": zipped(INNER), "../evil": b"y"}
    content = zipped(members | {f"tiny_net-1.0.dist-info/{name}": text for name, text in INFO.items()})
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf/tiny_net-1.0-py3-none-any.whl").write_bytes(content)
    settings = {"NO_INDEX": "1", "FIND_LINKS": tmp_path / "shelf", "CONFIG_FILE": "/dev/null"}
    for name, value in (settings | {"INDEX_URL": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return hashlib.sha256(content).hexdigest()


def source(wheel, **given):
    facts = {"kind": "checkpoint", "location": "pypi:tiny-net==1.0", "path": "net/net.bin", "file": "place/it"}
    return Source(**facts | {"licence": "MIT", "revision": wheel} | given)


def test_a_member_of_a_wheel_is_fetched_as_it_is(wheel, tmp_path):
    pin = hashlib.sha256(NET).hexdigest()
    assert sources.fetch("w", source(wheel, sha256=pin, bytes=len(NET)), tmp_path) == pin
    assert [path.read_bytes() for path in (tmp_path / "place").iterdir()] == [NET]


def test_files_of_a_zip_in_a_wheel_become_a_directory(wheel, tmp_path):
    wanted = source(wheel, path="net/model.zip", files=["config.json", "sub/net.bin"], bytes=len(NET) + 2)
    found = sources.fetch("w", wanted, tmp_path / "sources")
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"config.json", "net.bin", "it.sha256", "tiny_net-1.0-py3-none-any.whl"}
    assert found == sources.digest(tmp_path / "sources/place/it")
    assert (tmp_path / "sources/place/it/sub/net.bin").read_bytes() == NET


def test_another_wheel_is_refused(wheel, tmp_path):
    with pytest.raises(InputError, match="pip download: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"):
        sources.fetch("w", source("0" * 64), tmp_path)
    assert list((tmp_path / "place").iterdir()) == []
