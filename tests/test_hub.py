"""Repositories of the hub: downloaded at one commit, verified as a whole, continued where a download broke off."""

import hashlib
import json
import re
import subprocess

import pytest
import test_fetch
from test_fetch import Handler, put, stage

from flexround.errors import InputError
from flexround.io import sources
from flexround.settings.layout import ROOT
from flexround.settings.sources import Source

out, serve = test_fetch.out, test_fetch.serve
FILES = {"config.json": b"{}", "model-1.safetensors": b"one", "model-2.safetensors": b"two"}
LINES = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
DIGEST = hashlib.sha256(LINES.encode()).hexdigest()
COMMIT = "c" * 40  # what the branch means


def hub_source(**given):
    given = {"kind": "checkpoint", "files": ["config.json", "model-*.safetensors"], "revision": "main"} | given
    return Source(location="hub:owner/net", file="hub/net", licence="MIT", **given)


class Hub(Handler):
    """Answers as the hub does for one repository."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        server.asked.append((self.command, path))
        if path.startswith("/api/"):
            files = [{"type": "file", "path": name, "size": 3, "oid": name} for name in (*FILES, "others.bin")]
            facts = files if "/tree/" in path else {"id": "owner/net", "sha": COMMIT}
            return self.answer(json.dumps(facts).encode(), {"Content-Type": "application/json"})
        name = path.rpartition(f"/{COMMIT}/")[2]
        if name in server.lost and self.command == "GET":
            self.close_connection = True
            return self.answer(b"", {}, 500)
        tag = hashlib.sha1(FILES[name]).hexdigest()
        return self.answer(FILES[name], {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    def answer(self, content, headers, status=200):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch, tmp_path, serve):
    """Stand in for the hub; ``asked`` is what it was asked for, ``lost`` says which files don't come."""
    server = serve(Hub)
    server.lost = set()
    settings = {"ENDPOINT": server.address, "HOME": tmp_path / "home", "HUB_OFFLINE": "0", "HUB_DISABLE_XET": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"HF_{name}", str(value))
    return server


@pytest.mark.parametrize(("kind", "place"), [("checkpoint", ""), ("dataset", "/datasets")])
def test_a_repository_is_downloaded_at_its_revision_s_commit(hub, out, kind, place):
    for _ in range(2):
        stage("net", hub_source(kind=kind, revision="v2"), out)
        record = json.loads((out / "net.json").read_text())
        assert (record["sha256"], record["commit"], record["revision"]) == (DIGEST, COMMIT, "v2")
    assert {path.name for path in (out / "hub").iterdir()} == {"net", "net.sha256"}
    assert hub.asked.count(("GET", f"/api{place or '/models'}/owner/net/revision/v2")) == 1, "not the second time"
    got = [path for command, path in hub.asked if command == "GET" and "resolve" in path]
    assert sorted(got) == [f"{place}/owner/net/resolve/{COMMIT}/{name}" for name in FILES], "and no other file of it"


def test_the_documented_command_prints_the_hash_of_a_folder(tmp_path):
    put(tmp_path / "net/b", {"a b": b"1", "B": b"2", "\xe4": b"3"})
    put(tmp_path / "net", FILES)
    (command,) = re.findall(r"^ +(find .*sha256sum)$", (ROOT / "docs/run-at-scale.md").read_text(), re.MULTILINE)
    told = subprocess.run(command, shell=True, cwd=tmp_path / "net", capture_output=True, text=True, check=True).stdout
    assert told.split()[0] == sources.digest(tmp_path / "net")


def test_a_snapshot_that_broke_off_is_continued(hub, out):
    hub.lost.add("model-2.safetensors")
    with pytest.raises(InputError, match=r"net: hf download: Error: .*model-2"):
        sources.fetch("net", hub_source(), out)
    assert not (out / "hub/net").exists()
    hub.lost.clear()
    hub.asked.clear()
    assert sources.fetch("net", hub_source(), out) == DIGEST
    assert [path for command, path in hub.asked if command == "GET" and path.endswith("1.safetensors")] == []
