"""A table, its metrics, networks, samples, data and sources: each says of the others what it was made of."""

import contextlib
import json
from pathlib import Path

import pytest
from stage_calls import Work, exit_code

from flexround.io import artifacts
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
def swapped(work, kind):
    """Swap two results, each of which says that it belongs where it lies then."""
    paths = [work.root / "results/pairs" / path for path in PAIRS[kind]]
    lists = [next((path / name for name in verify.LISTS if (path / name).exists()), path) for path in paths]
    texts = [path.read_text() for path in lists]

    def swap():
        paths[0].rename(work.root / "kept")
        paths[1].rename(paths[0])
        (work.root / "kept").rename(paths[1])

    swap()
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


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("data", f"checkpoints/{TASK}/{ONE}/manifest.json: was made from another results/pairs/data/{TASK} than"),
        ("checkpoints", f"{PAIRS['quantized'][0]}/manifest.json: was made from another results/pairs/checkpoints/"),
        ("calibration", f"{PAIRS['quantized'][0]}/manifest.json: was made from another results/pairs/calibration/"),
        ("quantized", f"{PAIRS['evaluated'][0]}/metrics.json: was made from another results/pairs/quantized/"),
        ("evaluated", "table10.csv: "),
    ],
)
def test_what_was_made_of_something_else_is_named(work, capsys, kind, expected):
    with swapped(work, kind):
        right, lines = verified(work, capsys)
    assert not right
    assert any(line.startswith(f"results/pairs/{expected}") for line in lines), lines
