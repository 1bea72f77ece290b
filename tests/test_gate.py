"""From data to samples and a network; the gate: a full-precision network passes it or nothing is quantized."""

import hashlib

import pytest
from stage_calls import Work

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.tasks import protocol

NAMES = ("imagenet", "mobilenetv2-brecq")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A directory with data and a network that was trained for a moment."""
    root = tmp_path_factory.mktemp("gate")
    Work(ROOT / "tests/smoke.yaml", root).weights(*NAMES)
    return root


@pytest.fixture
def bounded(root):
    """Return a function that makes the work under other bounds; what an earlier gate wrote goes."""

    def make(**bounds):
        params = load_params(str(ROOT / "tests/smoke.yaml"))
        gates = tuple(rule.model_copy(update=bounds) for rule in params.scale.gates)
        work = Work("", root, params._replace(scale=params.scale.model_copy(update={"gates": gates})))
        (root / work.plan.gate(work.run(*NAMES))).unlink(missing_ok=True)
        return work

    return make


def test_samples_and_weights_say_what_they_were_made_of(bounded):
    work = bounded()
    samples, weights = (artifacts.read_manifest(path) for path in (work.samples(NAMES[0], 20, 3), work.weights(*NAMES)))
    assert (samples["seed"], samples["samples"], samples["task"]) == (3, 20, "imagenet")
    expected = protocol.draw_indices(work.params.scale.tasks[NAMES[0]].options["train"], 20, 3)
    assert samples["indices_sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert weights["train"]["settings"]["epochs"] == 1


def test_changed_data_are_refused(bounded):
    work = bounded(min=0, max=100)
    labels = work.data(NAMES[0]) / "val_labels.npy"
    content = labels.read_bytes()
    labels.write_bytes(content[:-8] + bytes([content[-8] ^ 1]) + content[-7:])  # the last label, its size as before
    try:
        with pytest.raises(InputError, match=rf"{labels.name}: its sha256 is not the one in its manifest"):
            work.gate(*NAMES)
    finally:
        labels.write_bytes(content)


def test_a_network_inside_its_bounds_passes_and_the_file_says_what_it_showed(bounded):
    work = bounded(min=0, max=100)
    record = artifacts.read_formatted(work.gate(*NAMES))
    assert record["metrics"] == work.metrics(*NAMES)["metrics"]
    assert record["gate"] == {"metric": "top1", "min": 0, "max": 100}
    assert record["names"] == ["smoke", *NAMES]
    value = record["metrics"]["top1"]
    assert bounded(min=value, max=value).gate(*NAMES).exists(), "a bound itself passes"


@pytest.mark.parametrize("bounds", [{"min": 100.5, "max": 101.0}, {"min": -2.0, "max": -1.0}])
def test_a_network_outside_its_bounds_stops_and_nothing_is_quantized(bounded, bounds):
    work = bounded(**bounds)
    value = work.metrics(*NAMES)["metrics"]["top1"]
    before = sorted(work.root.rglob("*"))
    with pytest.raises(InputError) as caught:
        work.quantized(*NAMES, "b-rtn-w4")
    expected = f"{work.weights(*NAMES).relative_to(work.root)}: full-precision top1 is {value}, "
    expected += f"expected {bounds['min']} to {bounds['max']}; nothing is quantized before this holds"
    assert str(caught.value).startswith(expected)
    assert not (work.root / "results/smoke/gates" / NAMES[0] / f"{NAMES[1]}.json").exists()
    assert not (work.root / "results/smoke/quantized").exists()
    made = {path.relative_to(work.root).parts[0] for path in {*work.root.rglob("*")} - {*before}}
    assert made <= {".jobs", ".code"}, "nothing is written but how the job would be"


def test_a_metric_that_the_evaluation_lacks_stops_too(bounded):
    with pytest.raises(InputError, match="full-precision f1 is None, expected 0"):
        bounded(metric="f1").gate(*NAMES)
