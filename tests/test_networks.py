"""The pinned networks and texts of the mini scale: files of this project, verified as a download is."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import networks
from flexround.errors import SettingsError
from flexround.io import artifacts, fetchers, sources
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.sources import Source

MINI = load_params("mini")
INSIDE = {row: source for row, source in MINI.sources.items() if source.inside}
PINNED = {row: source for row, source in INSIDE.items() if source.kind == "checkpoint"}


@pytest.mark.parametrize(("folder", "most"), [("networks", 15e6), ("data", 10e6)])
def test_all_pinned_files_are_small_and_read(folder, most):
    files = [path for path in (PARAMS / folder).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= most
    read = {checkpoint.source for checkpoint in MINI.scale.checkpoints.values()} | {"rehearsal-imagenet"}
    assert set(INSIDE) <= read | {name for task in MINI.scale.tasks.values() for name in task.sources}
    places = [ROOT / source.inside for source in INSIDE.values()]
    assert all(any(path.is_relative_to(place) for place in places) for path in files), "a file that nothing reads"


@pytest.mark.parametrize("row", INSIDE)
def test_a_pinned_file_is_what_its_row_says(row, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    source = INSIDE[row]
    assert source.sha256 == sources.fetch(row, source, tmp_path)
    assert source.bytes == sources.size(tmp_path / source.file)


def test_a_new_version_of_a_pinned_file_replaces_the_old_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetchers, "PARAMS", tmp_path / "params")
    facts = {"kind": "checkpoint", "location": "file:w.bin", "file": "w.bin", "revision": "1", "licence": "MIT"}
    Path("w.bin").write_bytes(b"old")
    old = sources.fetch("w", Source(**facts, sha256=artifacts.sha256(Path("w.bin"))), tmp_path / "sources")
    Path("w.bin").write_bytes(b"new")
    new = sources.fetch("w", Source(**facts, sha256=artifacts.sha256(Path("w.bin"))), tmp_path / "sources")
    assert new != old
    assert (tmp_path / "sources/w.bin").read_bytes() == b"new"


def test_every_image_network_of_mini_can_be_made_again():
    plan = Plan(MINI)
    for name in (name for task, name in MINI.pairs() if task == "imagenet"):
        assert set(plan.origins("imagenet", name)) == {"source"}
    made = Plan(load_params(str(ROOT / "worlds/pretraining.yaml"))).pretrained()
    assert {row.removeprefix("mini-") for row in PINNED} <= made.keys()


def test_a_trained_network_is_written_and_pinned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"w": torch.full((2, 2), 1.0 / 3), "b": torch.full((2,), 1.0 / 3), "steps": torch.tensor(7)}
    Path("trained").mkdir()
    save_file(state, "trained/model.safetensors")
    artifacts.write_manifest(Path("trained"), ["model.safetensors"])
    source = Source(kind="checkpoint", location="file:n/a.safetensors", file="a", revision="1", licence="MIT")
    path = networks.write(Path("trained"), SimpleNamespace(), {}, source)
    found = load_file(path)
    assert {name: value.dtype for name, value in found.items()} == {"w": torch.float16, "b": torch.float32}
    monkeypatch.setattr(networks, "SOURCES", tmp_path / "sources.yaml")
    other, row = 'a:\n  sha256: "0"\n  bytes: 1\n', 'mini-a:\n  kind: x\n  sha256: "{}"\n  bytes: {}\n'
    networks.SOURCES.write_text(other + row.format("0", 1))
    networks.pin("mini-a", "f00", 12)
    assert networks.SOURCES.read_text() == other + row.format("f00", 12)
    with pytest.raises(SettingsError, match="other has no sha256"):
        networks.pin("other", "f00", 12)
