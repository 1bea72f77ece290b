"""A table, its metrics, networks, samples, data and sources: each says of the others what it was made of."""

import contextlib
import json
from pathlib import Path

import pytest
from stage_calls import Work, exit_code

from flexround.io import artifacts
from flexround.settings import layout
from flexround.tools import verify

SCALE = f"""
name: pairs
extends: {Path(__file__).parent / "smoke.yaml"}
tasks: {{other: {{module: "flexround.mini.digits:Digits", options: {{train: 600, val: 100}}}}}}
train: [{{when: {{checkpoint: mobilenetv2-torchvision}}, set: {{lr: 0.1}}, source: a test}}]
"""
TASK, ONE, OTHER, RECIPE = "imagenet", "mobilenetv2-brecq", "mobilenetv2-torchvision", "b-flexround-w4"
PAIRS = {
    "data": (f"data/{TASK}", "data/other"),
    "checkpoints": (f"checkpoints/{TASK}/{ONE}", f"checkpoints/{TASK}/{OTHER}"),
    "calibration": (f"calibration/{TASK}/n64-seed0", f"calibration/{TASK}/n64-seed1"),
    "gates": (f"gates/{TASK}/{ONE}.json", f"gates/{TASK}/{OTHER}.json"),
    "quantized": (f"quantized/{TASK}/{ONE}/{RECIPE}/seed0", f"quantized/{TASK}/{OTHER}/{RECIPE}/seed0"),
    "evaluated": (f"evaluated/{TASK}/{ONE}/{RECIPE}/seed0", f"evaluated/{TASK}/{OTHER}/{RECIPE}/seed0"),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A project with a table, of two networks, and what it was made of."""
    root = tmp_path_factory.mktemp("chain")
    (root / "pairs.yaml").write_text(SCALE)
    work = Work(root / "pairs.yaml", root)
    work.data("other"), work.samples(TASK, 64, seed=1)
    for checkpoint in (ONE, OTHER):
        work.evaluated(TASK, checkpoint, RECIPE)
    work.do("tabulate", 10, out="results/pairs/table10.csv")
    return work


@contextlib.contextmanager
def swapped(work, kind, renamed=False):
    """Swap two results; ``renamed``: each says that it belongs where it lies then."""
    paths = [work.root / "results/pairs" / path for path in PAIRS[kind]]
    lists = [next((path / name for name in verify.LISTS if (path / name).exists()), path) for path in paths]
    texts = [path.read_text() for path in lists]

    def swap():
        paths[0].rename(work.root / "kept")
        paths[1].rename(paths[0])
        (work.root / "kept").rename(paths[1])

    swap()
    if renamed:
        for path, text in zip(lists, texts, strict=True):
            old, content = json.loads(text), artifacts.read_json(path)
            artifacts.write_formatted(path, content | {key: old[key] for key in ("place", "run") if key in old})
    try:
        yield
    finally:
        swap()
        for path, text in zip(lists, texts, strict=True):
            path.write_text(text)


def verified(work, capsys):
    """Return whether all is right, and the lines."""
    with contextlib.chdir(work.root):
        return exit_code(verify, "--scale", "pairs.yaml") == 0, capsys.readouterr().out.splitlines()


def test_a_whole_chain_is_right(work, capsys):
    right, lines = verified(work, capsys)
    assert right, lines


@pytest.mark.parametrize("kind", PAIRS)
def test_swapped_results_are_named(work, capsys, kind):
    with swapped(work, kind):
        right, lines = verified(work, capsys)
    assert not right
    for path, place in (PAIRS[kind], PAIRS[kind][::-1]):
        assert any(line.startswith(f"results/pairs/{path}") and place in line for line in lines), lines


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("data", f"checkpoints/{TASK}/{ONE}/manifest.json: was made of another results/pairs/data/{TASK} than"),
        ("data", f"calibration/{TASK}/n64-seed0/manifest.json: was made of another results/pairs/data/{TASK} than"),
        ("data", f"gates/{TASK}/{ONE}.json: was made of another results/pairs/data/{TASK} than"),
        ("checkpoints", f"{PAIRS['quantized'][0]}/manifest.json: was made of another results/pairs/checkpoints/"),
        ("calibration", f"{PAIRS['quantized'][0]}/manifest.json: was made of another results/pairs/calibration/"),
        ("quantized", f"{PAIRS['evaluated'][0]}/metrics.json: was made of another results/pairs/quantized/"),
        ("evaluated", "table10.csv: "),
    ],
)
def test_what_was_made_of_something_else_is_named(work, capsys, kind, expected):
    with swapped(work, kind, renamed=True):
        right, lines = verified(work, capsys)
    assert not right
    assert any(line.startswith(f"results/pairs/{expected}") for line in lines), lines


def test_data_of_another_source_are_named(work, capsys):
    path = work.root / layout.data_dir("pairs", TASK) / "manifest.json"
    text, record = path.read_text(), work.root / layout.source_file("set")
    artifacts.write_formatted(path, artifacts.read_json(path) | {"inputs": {layout.source_file("set"): "a"}})
    assert verified(work, capsys)[0], "the source isn't here"
    artifacts.write_json(record, {"sha256": "b"})
    _, (first, *_) = verified(work, capsys)
    assert f"{path.relative_to(work.root)}: was made of another results/sources/set.json" in first
    path.write_text(text)
