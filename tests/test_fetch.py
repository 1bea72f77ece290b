"""Pinned sources: verified whether downloaded or put there by hand, and never left half-written."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
from pathlib import Path

import pytest
from stage_calls import call

from flexround.errors import InputError
from flexround.io import fetchers, sources
from flexround.jobs.runs import FetchJob
from flexround.settings.sources import Source

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FACTS = {"kind": "checkpoint", "revision": "v1", "licence": "MIT"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(fetchers, "PAUSES", (0.0, 0.0))


def source(location, **given):
    return Source(location=location, **FACTS | {"file": "zoo/w.pth"} | given)


@pytest.fixture
def url(tmp_path):
    (tmp_path / "remote").write_bytes(CONTENT)
    return (tmp_path / "remote").as_uri()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "sources"


def stage(name, source, out):
    """Run the stage with a job of its own."""
    out.mkdir(exist_ok=True)
    (out / "job").write_text(FetchJob(name=name, source=source, pins={}, out=out / f"{name}.json").model_dump_json())
    call("fetch", out / "job")


def put(directory, files):
    (directory / ".cache").mkdir(parents=True, exist_ok=True)
    for name, content in {**files, ".cache/notes": str(directory).encode(), ".gitattributes": b"*"}.items():
        (directory / name).write_bytes(content)


# a file


@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"bytes": 5}, {"revision": "sha256:12345678"}])
def test_a_wrong_file_is_refused_and_not_kept(url, out, pin):
    with pytest.raises(InputError, match=r"source w: .*zoo/w.pth: it.*put it at"):
        sources.fetch("w", source(url, **pin), out)
    assert list(out.rglob("*.*")) == []


def test_a_file_put_there_by_hand_is_verified(out):
    """A folder without named files is taken as it is."""
    wanted = source("ask the authors: https://example.org", sha256=SHA256)
    with pytest.raises(InputError, match=rf"{out}/zoo/w.pth: .*ask the authors.*{SHA256}"):
        sources.fetch("w", wanted, out)
    (out / "zoo").mkdir(parents=True)
    (out / "zoo/w.pth").write_bytes(CONTENT)
    assert sources.fetch("w", wanted, out) == SHA256
    (out / "folder").mkdir()
    assert sources.fetch("w", source("ask the authors", file="folder"), out) is None


def test_an_unpinned_hash_is_recorded_and_enforced(url, out, tmp_path):
    """A server's mistake was recorded: the way back works literally as the message says."""
    (tmp_path / "remote").write_bytes(b"not the weights")
    stage("w", source(url), out)
    (tmp_path / "remote").write_bytes(CONTENT)
    (out / "zoo/w.pth").unlink()
    with pytest.raises(InputError) as caught:
        stage("w", source(url), out)
    Path(re.search(r"but (\S+) says \S+ \(recorded", str(caught.value))[1]).unlink()
    stage("w", source(url), out)
    assert json.loads((out / "w.json").read_text())["sha256"] == SHA256
    assert (out / "zoo/w.pth.sha256").read_text() == f"{SHA256}  w.pth\n"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a/\0"])
def test_a_source_stays_in_its_directory(path):
    for wrong in ({"file": path}, {"files": [path]}, {"location": f"file:../{path}"}):
        with pytest.raises(ValueError, match="relative path"):
            source(**{"location": "ask"} | wrong)


# a server


class Handler(http.server.BaseHTTPRequestHandler):
    """Has nothing."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.reply()

    def reply(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def replying(*bodies, length=None):
    """Return a handler that answers with each of ``bodies`` in turn, and closes the connection."""

    class Replying(Handler):
        def reply(self):
            body = bodies[min(len(self.server.asked), len(bodies)) - 1]
            self.send_response(200)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

    return Replying


@pytest.fixture
def serve():
    """Return a function that starts a server of a handler class; ``asked`` lists what it is asked for."""
    with contextlib.ExitStack() as running:

        def serve(handler):
            found = running.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
            found.asked, found.daemon_threads = [], True
            # A client may give up: its traceback would parse source, which CPython 3.11 can't do in two threads.
            found.handle_error = lambda *_: None
            found.address = f"http://127.0.0.1:{found.server_port}"
            threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
            running.callback(found.shutdown)
            return found

        yield serve


@pytest.mark.parametrize(
    ("handler", "tries"),
    [(replying(CONTENT[:100], length=len(CONTENT)), 3), (Handler, 1)],
    ids=["broken off", "absent"],
)
def test_a_server_that_fails_is_one_message_and_nothing_is_kept(serve, out, handler, tries):
    server = serve(handler)
    with pytest.raises(InputError, match="the download failed"):
        sources.fetch("w", source(f"{server.address}/w.pth"), out)
    assert len(server.asked) == tries
    assert not (out / "zoo/w.pth").exists()


def test_a_broken_download_is_tried_again_a_wrong_hash_is_final(serve, out):
    half = CONTENT[:100]
    server = serve(replying(half, half, CONTENT, length=len(CONTENT)))
    with pytest.raises(InputError, match="its sha256 is"):
        sources.fetch("w", source(f"{server.address}/w.pth", sha256="0" * 64), out)
    assert len(server.asked) == 3
    assert sources.fetch("w", source(f"{server.address}/w.pth"), out) == SHA256


def test_the_files_of_a_directory_are_downloaded_one_by_one(tmp_path, out):
    remote = tmp_path / "remote"
    put(remote, {"train.json": b"[1]"})
    rows = {"kind": "dataset", "file": "set", "files": ["train.json", "test.json"], "revision": "1", "licence": "MIT"}
    wanted = Source(location=remote.as_uri(), **rows)
    with pytest.raises(InputError, match=r"download failed .*train.json, test.json from"):
        sources.fetch("set", wanted, out)
    (remote / "train.json").unlink()  # what is there already isn't asked for again
    put(remote, {"test.json": b"[2]"})
    assert sources.fetch("set", wanted, out) == sources.digest(out / "set")
    files = {path.name: path.read_bytes() for path in (out / "set").iterdir()}
    assert files == {"train.json": b"[1]", "test.json": b"[2]"}
