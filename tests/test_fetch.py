"""Pinned sources: verified whether downloaded or put there by hand, and never left half-written."""

import functools
import hashlib
import http.server
import threading

import pytest

from flexround import sources
from flexround.errors import InputError, SettingsError
from flexround.settings.load import read_sources
from flexround.settings.schema import Source
from flexround.stages import fetch

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def source(location, **given):
    return Source(kind="checkpoint", location=location, file="zoo/w.pth", revision="v1", licence="MIT", **given)


@pytest.fixture
def url(tmp_path):
    (tmp_path / "remote").write_bytes(CONTENT)
    return (tmp_path / "remote").as_uri()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "sources"


def test_a_pinned_file_is_downloaded(url, out):
    assert sources.fetch("w", source(url, sha256=SHA256, bytes=len(CONTENT)), out) == SHA256
    assert (out / "zoo/w.pth").read_bytes() == CONTENT
    assert [path.name for path in (out / "zoo").iterdir()] == ["w.pth"]


@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"bytes": 5}])
def test_a_wrong_file_is_refused_and_not_kept(url, out, pin):
    with pytest.raises(InputError, match=r"source w: .*zoo/w.pth: it.*put it at"):
        sources.fetch("w", source(url, **pin), out)
    assert list(out.rglob("*.*")) == []


def test_the_hash_at_the_end_of_a_file_name_is_enforced(url, out):
    given = {"kind": "checkpoint", "location": url, "file": "w.pth", "licence": "MIT"}
    sources.fetch("w", Source(revision=f"sha256:{SHA256[:8]}", **given), out)
    with pytest.raises(InputError, match="must begin with 12345678"):
        sources.fetch("w", Source(revision="sha256:12345678", **given), out)


def test_an_unpinned_hash_is_recorded_then_enforced(url, out, tmp_path):
    sources.fetch("w", source(url), out)
    assert (out / "zoo/w.pth.sha256").read_text() == f"{SHA256}  w.pth\n"
    (out / "zoo/w.pth").unlink()
    (tmp_path / "remote").write_bytes(CONTENT + b"!")
    with pytest.raises(InputError, match=r"w\.pth\.sha256 says " + SHA256):
        sources.fetch("w", source(url), out)
    assert not (out / "zoo/w.pth").exists()


def test_a_file_put_there_by_hand_is_verified(url, out):
    (out / "zoo").mkdir(parents=True)
    (out / "zoo/w.pth").write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match=r"its sha256 is .* but params/sources.yaml says"):
        sources.fetch("w", source("ask the authors", sha256=SHA256), out)
    (out / "zoo/w.pth").write_bytes(CONTENT)
    assert sources.fetch("w", source("ask the authors", sha256=SHA256), out) == SHA256


def test_a_source_that_cannot_be_downloaded_says_what_to_put_where(out):
    with pytest.raises(InputError) as caught:
        sources.fetch("w", source("ask the authors: https://example.org", sha256=SHA256), out)
    for part in ("ask the authors", str(out / "zoo/w.pth"), SHA256, "can't be downloaded freely"):
        assert part in str(caught.value)


def test_a_folder_is_taken_as_it_is(out):
    (out / "zoo/w.pth").mkdir(parents=True)
    assert sources.fetch("w", source("ask the authors"), out) is None


class Truncating(http.server.BaseHTTPRequestHandler):
    """Promises all bytes and closes the connection after some."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:100])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """Return a function that serves with a handler class and returns the address."""
    running = []

    def serve(handler):
        found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=found.serve_forever, daemon=True).start()
        running.append(found)
        return f"http://127.0.0.1:{found.server_address[1]}"

    yield serve
    for found in running:
        found.shutdown()
        found.server_close()


def test_a_broken_off_download_is_not_kept(server, out):
    with pytest.raises(InputError, match=f"100 of {len(CONTENT)} bytes"):
        sources.fetch("w", source(server(Truncating) + "/w.pth"), out)
    assert list(out.rglob("*.*")) == []


def test_http_errors_and_no_network_are_one_message(server, out, tmp_path):
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    address = server(functools.partial(quiet, directory=str(tmp_path)))
    with pytest.raises(InputError, match=r"download failed \(HTTP Error 404"):
        sources.fetch("w", source(address + "/absent"), out)
    with pytest.raises(InputError, match=r"download failed .*put it at"):
        sources.fetch("w", source("http://127.0.0.1:9/w.pth"), out)


def test_the_stage_writes_what_is_there(url, out, monkeypatch):
    monkeypatch.setattr(fetch, "read_sources", lambda _: {"w": source(url)})
    fetch.run(fetch.parser().parse_args(["--source", "w", "--out", str(out)]))
    assert f'"sha256": "{SHA256}"' in (out / "w.json").read_text()
    with pytest.raises(SettingsError, match="did you mean 'w'"):
        fetch.run(fetch.parser().parse_args(["--source", "w1", "--out", str(out)]))


def test_the_table_of_sources_is_valid():
    errors = []
    known = read_sources(errors)
    assert errors == []
    assert known["resnet50-torchvision"].revision == "sha256:0676ba61"
