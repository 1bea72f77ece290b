"""Every reader of files x every kind of damage: an error that names the file, or a result, and nothing else.

Networks are those of the rehearsal, in the forms in which the paper's are released. ``make fuzz`` tries 400 cases of
each reader.
"""

import contextlib
import fnmatch
import json
import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import image_sets
import pytest
import reader_cases
import report_case
import table_runs
import test_lora
import torch
import toy
import yaml
from huggingface_hub.serialization import save_torch_state_dict
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import flexround
from flexround.errors import FlexRoundError
from flexround.io import artifacts, resume, sources
from flexround.jobs import resolve
from flexround.jobs.runs import ReconstructJob
from flexround.jobs.tables import TabulateJob
from flexround.mini.tasks.digits import Digits, DigitsOptions
from flexround.models import build, tokenizer_files
from flexround.models.shards import WHOLE, Shards
from flexround.models.surgery.lora import merge_checkpoint
from flexround.quant.grid import Grid
from flexround.reconstruct.codes import Part, Stored
from flexround.reconstruct.state import State
from flexround.results import evaluated, grid
from flexround.results.claims import specs
from flexround.settings import load, user_rows, validation
from flexround.settings.layout import PARAMS, ROOT, Run
from flexround.settings.plan import Plan
from flexround.stages import finetune
from flexround.tasks import protocol

CASES = int(os.environ.get("CASES", 6))  # of each reader
DAMAGES = {
    "missing": None,
    "empty": b"",
    "not UTF-8": b"\xff\xfe\n",
    "another kind": report_case.PIXEL,
    "deep": b"[" * 100_000 + b"]" * 100_000,
}
NONSENSE = (
    *(None, True, False, 0, -1, 2, 10**25, 1e300, -0.5, float("nan"), float("inf"), "", " ", "5", "1e400", "../../x"),
    *("/etc/passwd", "a b", "$(touch ran)", "=1+1", "\u2028", "\r", "\x0b", "\ud800", "no:thing", [], [[]], {}),
    *({"a": 1}, [None], ["x", 1], "x" * 5000),
)


class Reader(NamedTuple):
    """What writes whole files into a directory, and what reads them as the suite does, both with it as the current one.

    ``files`` are patterns of those to damage. ``pinned``: a sha256 is recorded, so damaged files give no other data.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    files: tuple[str, ...] = ("*",)
    pinned: bool = False


# what others release


SMALL = load.load_params("rehearsal")


def rows(case):
    """Return the reader of a data set's file."""
    return Reader(lambda d: reader_cases.write(d / case.file, case.content), case.read)


def network(name):
    """Return the reader of a checkpoint, as the finetune stage reads it."""
    checkpoint = SMALL.checkpoint(name)
    source = SMALL.sources[checkpoint.source].model_copy(update={"file": f"{name}.pth.tar"})

    def write(d):
        """Write BRECQ's old pickles, the half precision of OPT and its tokenizer in two files, LLaMA's shards."""
        frozen, path = ROOT / source.inside, d / source.file
        if frozen.is_file():
            torch.save({"model": load_file(frozen)}, path, _use_new_zipfile_serialization=False)
            return
        shutil.copytree(frozen, path)
        state = {name: value.half() for name, value in load_file(path / WHOLE).items()}
        if name == "opt-125m":
            torch.save(state, path / "pytorch_model.bin")
            tokenizer_files.load(path / "tokenizer.json").model.save(str(path))
            (path / WHOLE).unlink(), (path / "tokenizer.json").unlink()
        elif name == "llama-7b":
            (path / WHOLE).unlink()
            save_torch_state_dict(state, path, max_shard_size="300KB")

    def read(d):
        task = next(task for task, network in SMALL.pairs() if network == name)
        model = build.architecture(checkpoint, protocol.named(SMALL.scale, task).head)
        job = Namespace(checkpoint=checkpoint, sources=d, origins={checkpoint.source: source}, out=d / "out")
        with mock.patch.object(sources, "verify", return_value="0" * 64):
            finetune.import_source(job, model)
        if checkpoint.streamed:
            shards = Shards(d / source.file, model)
            shards.fill(shards.places)

    return Reader(write, read)


def write_adapter(d):
    torch.save({"model_state_dict": test_lora.adapter()}, d / "adapter.pt")


def read_adapter(d):
    merge_checkpoint(test_lora.make(), d / "adapter.pt")


def read_images(d):
    image_sets.build().prepare(d / "out", d)
    image_sets.build().calibration(d / "out", 12, 0)


# what people write


def write_settings(d):
    shutil.copytree(PARAMS, d / "params", ignore=shutil.ignore_patterns("networks"))
    recipe = {"setting": "B", "rounding": "flexround", "w_bits": 3, "hyper": {"iters": 100, "lr": {"all": 1e-3}}}
    row = {"table": 1, "recipe": "mine", "method": "B + Mine", "bits": "3/32"}
    (d / "own.yaml").write_text(yaml.safe_dump({"recipes": {"mine": recipe}, "rows": [row]}))


def read_settings(d):
    """Read all settings of a scale and resolve runs of it, as Snakemake does before it starts a job."""
    with mock.patch.object(load, "PARAMS", d / "params"):
        plan = Plan(user_rows.configured("real", str(d / "own.yaml")))
        validation.load(specs.Claims, d / "params/claims-real.yaml")
    runs = [run for number in plan.complete_tables() for run in plan.table_runs(number)]
    for run in [*runs, *(run for number in plan.complete_figures() for run in plan.figure_runs(number))][:30]:
        if plan.params.recipe(run.recipe).setting:
            plan.hyper(run), plan.samples_dir(run)
        plan.origins(run.task, run.checkpoint), plan.task_files(run.task), plan.gate(run)


# what the suite writes

DIGITS = Digits(DigitsOptions(train=20, val=20))
RESNET = report_case.PLAN.params.checkpoint("resnet18-brecq")


def write_weights(d):
    save_file(build.architecture(RESNET, DIGITS.head).state_dict(), d / "model.safetensors")
    artifacts.write_manifest(d, ["model.safetensors"], task="imagenet")


def write_quantized(d):
    flexround.quantize(toy.model(), toy.samples(32), "q-rtn-w4a8", iters=1, a_iters=1, batch=8, progress=False).save(d)


def interrupted(kept):
    """Let a job be interrupted: what is unfinished is kept."""
    with contextlib.suppress(KeyboardInterrupt), kept as opened:
        yield opened
        raise KeyboardInterrupt


def write_state(d):
    grid = Grid(torch.ones(()), torch.zeros(()), -8, 7)
    part = Part({"weight/a": Stored(grid, torch.arange(-8, 8).to(torch.int8), torch.ones(()))}, {})
    for state in interrupted(State(d / "run", "f" * 16).opened()):
        for block in range(3):
            state.commit(f"weights/{block:03}", part, {"fp": torch.randn(4, 3)}, {"seconds": 1.0})


def read_state(d):
    """Take over what a stopped job left; a damaged state is dropped, and all is done again."""
    for state in interrupted(State(d / "run", "f" * 16).opened()):
        found = [(entry["position"], entry["record"], state.part(entry).tensors()) for entry in state.entries]
    return found


def write_part(d):
    for _ in interrupted(resume.kept(d / "kept")):
        resume.save("epoch", {"model": {"a": torch.arange(5)}, "optimizer": {"b": torch.ones(3)}}, done=3)


def read_part(d):
    for _ in interrupted(resume.kept(d / "kept")):
        found = resume.load("epoch")
    return found


def write_evaluation(d):
    path = table_runs.write(d, "weak", table_runs.hits(700)) / "metrics.json"
    artifacts.write_formatted(path, json.loads(path.read_text()))


def read_evaluation(d):
    trials = evaluated.read_run(Run("mini", "imagenet", "net", "weak", 0), d, table_runs.METRICS)
    return {name: (trial.value, trial.stderr, trial.scores()) for name, trial in trials.items()}


def job_file(stage, kind, argument):
    return Reader(
        lambda d: (d / "job.json").write_bytes(Path(resolve.job(report_case.PLAN, stage, argument).file).read_bytes()),
        lambda d: kind.read(d / "job.json"),
        ("job.json",),
    )


SETTINGS = ("scales/real", "recipes", "defaults", "sources", "tables/real01", "figures-real", "claims-real")
RELEASED = ("resnet18-brecq", "bert-base", "opt-125m", "llama-7b")
READERS = {
    **{f"rows: {name}": rows(case) for name, case in reader_cases.CASES.items()},
    **{f"network: {name}": network(name) for name in RELEASED},
    "adapter": Reader(write_adapter, read_adapter),
    "images": Reader(lambda d: image_sets.write(d / "imagenet"), read_images, ("imagenet/*",)),
    "settings": Reader(write_settings, read_settings, ("own.yaml", *(f"params/{name}.yaml" for name in SETTINGS))),
    "data": Reader(
        lambda d: DIGITS.prepare(d, d),
        lambda d: (artifacts.read_manifest(d)["files"], DIGITS.calibration(d, 8, 0)),
        pinned=True,
    ),
    "full precision": Reader(
        write_weights, lambda d: build.full_precision(RESNET, DIGITS.head, d).state_dict(), pinned=True
    ),
    "quantized": Reader(
        write_quantized,
        lambda d: flexround.load(d, toy.model()).model.state_dict(),
        ("manifest.json", "*.safetensors"),
        pinned=True,
    ),
    "state": Reader(write_state, read_state, ("*.json", "*.safetensors"), pinned=True),
    "part of a job": Reader(write_part, read_part, pinned=True),
    "evaluation": Reader(write_evaluation, read_evaluation, pinned=True),
    "job of a reconstruction": job_file("reconstruct", ReconstructJob, report_case.RUN),
    "job of a table": job_file("tabulate", TabulateJob, 3),
    "table CSV": Reader(
        lambda d: (d / "table CSV").write_text(report_case.table3(d / "root")),
        lambda d: grid.load(d / "table CSV"),
        ("table CSV",),
    ),
}


# damage


@st.composite
def damages(draw, content, name):
    """Return other content for a file, or None for none."""
    structured = name.endswith((".json", ".jsonl", ".yaml"))
    ways = [way for way in DAMAGES if (way, Path(name).suffix) != ("deep", ".yaml")]  # PyYAML crashes on it
    way = draw(st.sampled_from([*ways, "bit", "bit", "cut", "noise", *["value"] * (5 * structured)]))
    if way in DAMAGES:
        return DAMAGES[way]
    if way == "value":
        return restructured(draw, content, name)
    start = draw(st.integers(0, max(len(content) - 1, 0)))
    if way == "bit":
        flipped = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in content[start : start + 1])
        return content[:start] + flipped + content[start + 1 :]
    end = start + draw(st.sampled_from((1, 4, 64, 1000, len(content))))
    return content[:start] + (draw(st.binary(max_size=64)) if way == "noise" else b"") + content[end:]


def restructured(draw, content, name):
    """Return JSON, lines of it, or YAML in which a value is nonsense or missing."""
    lines = content.splitlines() if name.endswith(".jsonl") else [content]
    number = draw(st.integers(0, len(lines) - 1))
    document = (json.loads if ".json" in name else yaml.safe_load)(lines[number])
    if not (places := list(entries(document))):
        return b""
    owner, key = draw(st.sampled_from(places))
    if draw(st.integers(0, 5)):
        owner[key] = draw(st.sampled_from(NONSENSE))
    else:
        del owner[key]
    text = json.dumps(document) if ".json" in name else yaml.safe_dump(document, allow_unicode=True)
    lines[number] = text.encode("utf-8", "surrogatepass")
    return b"".join(line.rstrip(b"\n") + b"\n" for line in lines)


def entries(document):
    """Yield the owner and the key, or index, of every value."""
    for key, value in (document if isinstance(document, dict) else dict(enumerate(document))).items():
        yield document, key
        if isinstance(value, dict | list):
            yield from entries(value)


def comparable(value):
    """Return a text that is equal for equal values, NaN and arrays included."""
    return json.dumps(value, default=lambda inner: inner.tolist() if hasattr(inner, "tolist") else repr(inner))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_damaged_file_is_refused_by_name_or_read(reader, tmp_path):
    """Where a reader has one file, nothing but the format tells what it should be: a file of another is refused."""
    original, first = tmp_path / "whole", tmp_path / "first"
    original.mkdir()
    with contextlib.chdir(original):
        reader.make(original)
    shutil.copytree(original, first)
    with contextlib.chdir(first):
        whole = comparable(reader.read(first))
    names = sorted(str(path.relative_to(original)) for path in original.rglob("*") if path.is_file())
    names = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in reader.files)]

    def refused(name, content):
        with tempfile.TemporaryDirectory(dir=tmp_path) as place, contextlib.chdir(place):
            work = shutil.copytree(original, Path(place), copy_function=os.link, dirs_exist_ok=True)
            (work / name).unlink()
            if content is not None:
                (work / name).write_bytes(content)
            try:
                found = reader.read(work)
            except FlexRoundError as error:
                message = str(error)
                assert any(part in message for part in (place, Path(name).stem, *Path(name).parts)), message
                return True
        assert not (found and reader.pinned) or comparable(found) == whole, "other data where a sha256 is recorded"
        return False

    @settings(max_examples=CASES, deadline=None, derandomize=CASES < 100, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data):
        name = data.draw(st.sampled_from(names))
        content = data.draw(damages((original / name).read_bytes(), name))
        note(f"{name}: {(content or b'')[:200]!r}")
        refused(name, content)

    check()
    for damage in ("missing", "empty", "not UTF-8", "another kind") if len(names) == 1 else ():
        assert refused(names[0], DAMAGES[damage]), damage
