"""Pinned sources: verified whether downloaded or put there by hand, and never left half-written."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import json
import re
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from stage_calls import call

from flexround.errors import InputError
from flexround.io import download, sources
from flexround.jobs.fetch import FetchJob
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.settings.schema import Source
from flexround.tasks.glue import files as glue_files

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0))


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


FILES = {"config.json": b"{}", "model-1.safetensors": b"one", "model-2.safetensors": b"two"}
LINES = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
DIGEST = hashlib.sha256(LINES.encode()).hexdigest()
COMMIT, MOVED = "c" * 40, "d" * 40  # what the branch means at first, and then


def hub_source(**given):
    given = {"kind": "checkpoint", "files": ["config.json", "model-*.safetensors"], "revision": "main"} | given
    return Source(location="hub:owner/net", file="hub/net", licence="MIT", **given)


def put(directory, files=FILES):
    (directory / ".cache").mkdir(parents=True, exist_ok=True)
    for name, content in {**files, ".cache/notes": str(directory).encode(), ".gitattributes": b"*"}.items():
        (directory / name).write_bytes(content)


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for one repository."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        server.asked.append((self.command, path))
        if path.startswith("/api/"):
            files = [{"type": "file", "path": name, "size": 3, "oid": name} for name in (*FILES, "others.bin")]
            again = path.endswith("/main") and server.asked.count((self.command, path)) > 1
            facts = files if "/tree/" in path else {"id": "owner/net", "sha": MOVED if again else COMMIT}
            return self.answer(json.dumps(facts).encode(), {"Content-Type": "application/json"})
        name = path.rpartition(f"/{COMMIT}/")[2]
        if name in server.lost and self.command == "GET":
            return self.close_at_once()
        if name == server.slow and self.command == "GET":
            time.sleep(30)
        tag = hashlib.sha1(FILES[name]).hexdigest()
        return self.answer(FILES[name], {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    def answer(self, content, headers):
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def close_at_once(self):
        self.close_connection = True
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Stand in for the hub; ``asked`` is what it was asked for, ``lost`` and ``slow`` say which files don't come."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.asked, server.lost, server.slow, server.daemon_threads = [], set(), "", True
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("kind", "repo_type"), [("checkpoint", "model"), ("dataset", "dataset")])
def test_a_repository_is_downloaded_at_the_commit_that_its_revision_means(hub, out, kind, repo_type):
    assert sources.fetch("net", hub_source(kind=kind), out) == DIGEST
    assert {path.name for path in (out / "hub").iterdir()} == {"net", "net.sha256", "net.commit"}
    assert ("GET", f"/api/{repo_type}s/owner/net/revision/main") in hub.asked
    place = "/datasets" if repo_type == "dataset" else ""
    got = {path for command, path in hub.asked if command == "GET" and "resolve" in path}
    assert got == {f"{place}/owner/net/resolve/{COMMIT}/{name}" for name in FILES}, "and no other file of it"
    hub.asked.clear()
    assert sources.fetch("net", hub_source(kind=kind), out) == DIGEST
    assert hub.asked == []


def test_a_directory_is_verified_as_a_whole(hub, out):
    put(out / "hub/net")
    assert sources.verify("net", hub_source(), out / "hub/net") == DIGEST
    assert (out / "hub/net.sha256").read_text() == f"{DIGEST}  net\n"
    (out / "hub/net/.cache/notes").write_text("others")
    assert sources.fetch("net", hub_source(sha256=DIGEST, bytes=8), out) == DIGEST
    (out / "hub/net/added.json").write_text("{}")
    with pytest.raises(InputError, match=rf"net.sha256 says {DIGEST}"):
        sources.fetch("net", hub_source(), out)
    assert hub.asked == []


def test_the_documented_command_prints_the_hash_of_a_folder(tmp_path):
    put(tmp_path / "net/b", {"a b": b"1", "B": b"2", "\xe4": b"3"})
    put(tmp_path / "net")
    (command,) = re.findall(r"^ +(find .*sha256sum)$", (ROOT / "docs/paper-scale.md").read_text(), re.MULTILINE)
    told = subprocess.run(command, shell=True, cwd=tmp_path / "net", capture_output=True, text=True, check=True).stdout
    assert told.split()[0] == sources.digest(tmp_path / "net")


def test_a_directory_without_a_needed_file_is_refused(out):
    put(out / "hub/net", {"model-1.safetensors": b"one"})
    with pytest.raises(InputError, match=r"it has no config.json\. Get config.json, model-\*"):
        sources.verify("net", hub_source(), out / "hub/net")
    assert not (out / "hub/net.sha256").exists()


def test_a_broken_off_snapshot_is_not_taken_for_a_whole_one(hub, out):
    hub.lost.add("model-2.safetensors")
    with pytest.raises(InputError, match=r"the download failed \(\w+Error: .*model-2"):
        sources.fetch("net", hub_source(), out)
    assert not (out / "hub/net").exists()
    hub.lost.clear()
    hub.asked.clear()
    assert sources.fetch("net", hub_source(), out) == DIGEST
    assert [path for command, path in hub.asked if command == "GET" and path.endswith("1.safetensors")] == []


def test_a_snapshot_that_takes_too_long_is_ended_and_what_came_is_kept(hub, out, monkeypatch):
    hub.slow = "model-2.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("flexround.io.hub.LIMIT", 8)
        with pytest.raises(InputError, match="it took longer than 8 s; what came is kept"):
            sources.fetch("net", hub_source(), out)
    assert not (out / "hub/net").exists()
    hub.slow = ""
    hub.asked.clear()
    assert sources.fetch("net", hub_source(), out) == DIGEST


def test_a_missing_directory_says_what_to_put_where(out):
    with pytest.raises(InputError) as caught:
        sources.verify("net", hub_source(), out / "hub/net")
    parts = ("it is missing", "config.json, model-*.safetensors", "model owner/net", "revision main", "paper-scale.md")
    for part in (*parts, f"{out}/hub/net/"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def stage(name, source, out):
    """Run the stage with a job of its own."""
    out.mkdir(exist_ok=True)
    (out / "job").write_text(FetchJob(name=name, source=source, out=out / f"{name}.json").model_dump_json())
    call("fetch", {"job": out / "job"})


def test_the_stage_records_the_commit(hub, out):
    for _ in range(2):
        stage("net", hub_source(), out)
        record = json.loads((out / "net.json").read_text())
        assert (record["sha256"], record["commit"], record["revision"]) == (DIGEST, COMMIT, "main")


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
def server():
    """Return a function that serves with a handler class and returns the address."""
    running = []

    def serve(handler):
        found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
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


def test_what_the_network_breaks_off_is_tried_again_and_a_wrong_hash_is_final(server, out):
    asked = []

    class Flaky(Truncating):
        def do_GET(self):
            asked.append(self.path)
            if len(asked) > 2:
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT)
            else:
                super().do_GET()

    address = server(Flaky) + "/w.pth"
    with pytest.raises(InputError, match="its sha256 is"):
        sources.fetch("w", source(address, sha256="0" * 64), out)
    assert len(asked) == 3
    sources.fetch("w", source(address), out)
    assert (out / "zoo/w.pth").read_bytes() == CONTENT


def test_http_errors_and_no_network_are_one_message(server, out, tmp_path):
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    address = server(functools.partial(quiet, directory=str(tmp_path)))
    with pytest.raises(InputError, match=r"download failed \(HTTP Error 404"):
        sources.fetch("w", source(address + "/absent"), out)
    with pytest.raises(InputError, match=r"download failed .*put it at"):
        sources.fetch("w", source("http://127.0.0.1:9/w.pth"), out)


def test_the_files_of_a_directory_are_downloaded_one_by_one(tmp_path, out):
    remote = tmp_path / "remote"
    put(remote, {"train.json": b"[1]"})
    rows = {"kind": "dataset", "file": "set", "files": ["train.json", "test.json"], "revision": "1", "licence": "MIT"}
    wanted = Source(location=remote.as_uri(), **rows)
    with pytest.raises(InputError, match=r"download failed .*train.json, test.json from.*put them into .*set/"):
        sources.fetch("set", wanted, out)
    assert not (out / "set").exists()
    (remote / "train.json").unlink()  # what is there already isn't asked for again
    put(remote, {"test.json": b"[2]"})
    assert sources.fetch("set", wanted, out) == sources.digest(out / "set")
    assert {path.name: path.read_bytes() for path in (out / "set").iterdir()} == {
        "train.json": b"[1]",
        "test.json": b"[2]",
    }
    put(remote, {"train.json": b"[1]"})
    with pytest.raises(InputError, match=r"its sha256 is .*, but params/sources.yaml says 0000"):
        sources.fetch("other", Source(location=remote.as_uri(), sha256="0" * 64, **rows | {"file": "other"}), out)
    assert not list(out.glob("*other*"))


def test_the_table_of_sources_is_valid():
    known = load_params("mini").sources
    assert known["resnet50-torchvision"].revision == "sha256:0676ba61"
    for split in (f"{name}/{split}" for name, splits in glue_files.SPLITS.items() for split in splits):
        assert f"{split}-*.parquet" in known["glue"].files


def replying(body, headers=(), pause=0.0):
    """Return a handler that answers with these bytes, piece by piece, and closes the connection."""

    class Handler(Truncating):
        def do_GET(self):
            self.send_response(200)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the other side may have given up
                for start in range(0, len(body), 100):
                    self.wfile.write(body[start : start + 100])
                    time.sleep(pause)

    return Handler


PAGE = b"\n <!DOCTYPE html><html><body>Not found</body></html>"
TENSORS = save({"a": np.zeros(100, np.float32)})
DEEP = b"[" * 100_000 + b"]" * 100_000
ZIP = io.BytesIO()
with zipfile.ZipFile(ZIP, "w") as _packed:
    _packed.writestr("data.pkl", CONTENT)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("w.pth", b"", "it is empty"),
        ("w.pth", b" \n", "it is empty"),
        ("w.pth", PAGE, "it is a page of HTML"),
        ("w.json", PAGE.upper(), "it is a page of HTML"),
        ("w.pth", ZIP.getvalue()[:-30], "it is not a whole pth file"),
        ("w.tgz", gzip.compress(CONTENT)[:-9], "it is not a whole tgz file"),
        ("w.tgz", gzip.compress(CONTENT)[:-9] + bytes(9), "it is not a whole tgz file"),
        ("w.safetensors", TENSORS[:-1], "it is not a whole safetensors file"),
        ("w.safetensors", TENSORS[:5], "it is not a whole safetensors file"),
        ("w.safetensors", len(DEEP).to_bytes(8, "little") + DEEP, "it is not a whole safetensors file"),
        ("w.parquet", b"PAR1" + CONTENT, "it is not a whole parquet file"),
        ("w.parquet", b"PAR", "it is not a whole parquet file"),
        ("w.json", b'{"a": [1, 2', "it is not a whole json file"),
        ("w.json", DEEP, "it is not a whole json file"),
    ],
    ids=range(14),
)
def test_what_cannot_be_the_file_is_refused_and_no_hash_recorded(server, out, name, body, message):
    """The server says no length, so that nothing but the content tells."""
    wanted = source(f"{server(replying(body))}/{name}")
    with pytest.raises(InputError, match=rf"source w: .*w\.pth: {message}.*put it at"):
        sources.fetch("w", wanted, out)
    assert [path for path in out.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("w.pth", CONTENT),
        ("w.pth", ZIP.getvalue()),
        ("w.tgz", gzip.compress(CONTENT)),
        ("w.safetensors", TENSORS),
        ("w.parquet", b"PAR1" + CONTENT + b"PAR1"),
        ("w.json", b'{"a": [1, 2]}'),
        ("page.html", PAGE),
    ],
    ids=range(7),
)
def test_whole_files_of_each_format_are_taken(server, out, name, body):
    assert sources.fetch("w", source(f"{server(replying(body))}/{name}"), out) == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("length", ["abc", "-5"])
def test_nonsense_of_a_server_is_one_message(server, out, length):
    with pytest.raises(InputError, match=f"Content-Length: '{length}'"):
        sources.fetch("w", source(server(replying(CONTENT, [("Content-Length", length)])) + "/w.pth"), out)


@pytest.mark.parametrize(
    "address", ["http://[::1/w", "http://a:b/w", "http://", "https:///w", "http://a b/w", "file://x/y"]
)
def test_a_bad_address_is_one_message(out, address):
    with pytest.raises(InputError, match=r"source w: .*put it at"):
        sources.fetch("w", source(address), out)


class Endless(Truncating):
    """Sends one header, byte after byte."""

    def do_GET(self):
        self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.05)


@pytest.mark.parametrize("handler", [replying(CONTENT, pause=0.05), Endless], ids=["body", "header"])
def test_a_download_has_a_time_limit_in_all(server, out, monkeypatch, handler):
    monkeypatch.setattr(download, "LIMIT", 0.2)
    started = time.monotonic()
    with pytest.raises(InputError, match=r"it took longer than 0\.2 s"):
        sources.fetch("w", source(server(handler) + "/w.pth"), out)
    assert time.monotonic() - started < 2
    assert not (out / "zoo/w.pth").exists()


def test_a_silent_server_is_given_up(server, out, monkeypatch):
    monkeypatch.setattr(download, "QUIET", 0.2)
    started = time.monotonic()
    with pytest.raises(InputError, match=r"the download failed \(.*timed out"):
        sources.fetch("w", source(server(replying(CONTENT, pause=3)) + "/w.pth"), out)
    assert time.monotonic() - started < 2


def test_a_wrongly_recorded_hash_has_a_way_back_that_works_literally(url, out, tmp_path):
    """A server's mistake was recorded, so the true file is refused until its record is deleted, as the message says."""
    (tmp_path / "remote").write_bytes(b"not the weights")
    stage("w", source(url), out)
    (tmp_path / "remote").write_bytes(CONTENT)
    (out / "zoo/w.pth").write_bytes(CONTENT)
    with pytest.raises(InputError) as caught:
        stage("w", source(url), out)
    record = re.search(r"but (\S+) says \S+ \(recorded, not pinned: delete it if it is wrong\)", str(caught.value))[1]
    Path(record).unlink()
    stage("w", source(url), out)
    assert json.loads((out / "w.json").read_text())["sha256"] == SHA256


def test_a_damaged_file_is_fetched_again_as_its_message_says(url, out):
    stage("w", source(url, sha256=SHA256), out)
    (out / "zoo/w.pth").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(InputError) as caught:
        sources.verify("w", source(url, sha256=SHA256), out / "zoo/w.pth")
    for path in re.search(r"Or delete (\S+) and (\S+), and run the same command again", str(caught.value)).groups():
        Path(path).unlink()
    assert not (out / "w.json").exists()  # so its rule runs again
    stage("w", source(url, sha256=SHA256), out)
    assert (out / "zoo/w.pth").read_bytes() == CONTENT


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a/\0"])
def test_a_source_stays_in_its_directory(path):
    facts = {"kind": "checkpoint", "location": "ask", "revision": "1", "licence": "MIT", "file": "w"}
    for changes in (
        {"file": path},
        {"files": [path]},
        {"location": f"file:{path}"} if path[:1] != "/" else {"file": path},
    ):
        if changes.get("location") == "file:":
            continue
        with pytest.raises(ValueError, match="relative path"):
            Source(**facts | changes)
