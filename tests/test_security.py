"""Data is not code, as docs/security.md promises: it runs no code, leads nowhere, reaches no network."""

import ast
import csv
import io
import re
import tarfile
from pathlib import Path

import pytest

from flexround.io import artifacts, sources
from flexround.results import frames
from flexround.settings.layout import ROOT
from flexround.settings.sources import Source

SOURCES = sorted((ROOT / "src").rglob("*.py"))
RUNS_CODE = {  # what a call of this name would do with data
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "runpy.run_path", "runpy.run_module"),
    *("pickle.load", "pickle.loads", "dill.load", "joblib.load", "marshal.loads", "shelve.open"),
}
UNPACKS = {"extractall", "extract", "unpack_archive", "unsafe_load", "full_load"}  # whatever it is called on
NETWORK = {"urllib.request", "http.client", "huggingface_hub", "requests", "httpx", "ftplib", "aiohttp", "urllib3"}
MAY_REACH = {"fetchers.py"}  # of the stage fetch, which else starts git, pip and hf


def nodes(kind):
    """Yield the name of a file and a node of its syntax tree, of all source files."""
    for path in SOURCES:
        yield from ((path.name, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind))


def test_nothing_runs_code_that_is_in_data():
    for file, node in nodes(ast.Call):
        name, options = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        where = f"{file}: {name}"
        assert name not in RUNS_CODE, where
        assert name.rpartition(".")[2] not in UNPACKS, where
        for option in ("shell", "allow_pickle", "trust_remote_code"):
            assert options.get(option) in (None, "False"), f"{where} with {option}"
        assert name != "torch.load" or options.get("weights_only") == "True", f"{where} unpickles"
        assert name != "yaml.load" or "Loader" in ast.unparse(node), f"{where} makes objects"


def test_only_fetching_reaches_the_network():
    reaching = set()
    for file, node in nodes((ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None)
        imported = {module, *(f"{module}.{alias.name}" if module else alias.name for alias in node.names)}
        reaching |= {file} if imported & NETWORK else set()
    assert reaching == MAY_REACH


def test_a_tar_that_leads_outside_writes_nothing(tmp_path):
    """Archives are read entry by entry and never unpacked: names, links and devices in them mean nothing."""
    place = tmp_path / "sources"
    place.mkdir()
    with tarfile.open(place / "set.tar", "w") as tar:
        for name in ("../outside.txt", "/tmp/absolute-outside.txt", "in.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            tar.addfile(entry, io.BytesIO(b"abc"))
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("device", tarfile.CHRTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "../../outside.txt" if kind == tarfile.SYMTYPE else "in.txt"
            tar.addfile(entry)
    facts = {"kind": "dataset", "location": "ask", "revision": "1", "licence": "MIT", "file": "set.tar"}
    with pytest.raises(KeyError):  # its link leads out of it
        sources.verify("set", Source(packed=True, **facts), place / "set.tar")
    assert {path.name for path in tmp_path.rglob("*")} == {"sources", "set.tar"}
    assert not Path("/tmp/absolute-outside.txt").exists()


def test_a_file_replaces_a_link_and_does_not_follow_it(tmp_path):
    (tmp_path / "victim").write_text("somebody's")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/table.csv").symlink_to(tmp_path / "victim")
    artifacts.write_text(tmp_path / "results/table.csv", "ours")
    assert (tmp_path / "victim").read_text() == "somebody's"
    assert not (tmp_path / "results/table.csv").is_symlink()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *((text, f"'{text}") for text in ("=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-cmd|x")),
        *(("\t=1", "'=1"), ("a\r\nb", "a b"), ("a\u2028b", "a b")),
        *((text, text) for text in ("B + FlexRound", "-1.50", "--", "1e-3")),
    ],
)
def test_a_spreadsheet_computes_nothing_that_stands_in_a_name(text, written):
    """A name is one line, too; numbers and other names stay as they are."""
    assert list(csv.DictReader(io.StringIO(frames.text(frames.made([{"a": text}], ["a"]))))) == [{"a": written}]


def test_installation_asks_for_hashes_of_the_installer_too():
    for name in ("Makefile", "container/install.sh"):
        lines = [line for line in (ROOT / name).read_text().splitlines() if re.search(r"pip (install|sync)", line)]
        assert len(lines) >= 2
        assert all("--require-hashes" in line or "--no-deps" in line for line in lines), lines
