"""Oracles of the second redesign: the jobs, renderings, codes and rows of the code before it.

Every commit of the redesign must give them again: ``pytest oracles``, 2 minutes on one core. ``WRITE_ORACLES=1``
replaces the stored ones; such a commit says which ones changed and why. The directory goes when the redesign is done.
"""

import hashlib
import io
import json
import lzma
import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import table_runs
import torch
import yaml
from stage_calls import Work
from test_workflow import Project

from flexround import metrics
from flexround.reconstruct import codes
from flexround.results import grid, published_results
from flexround.results.render import html, latex, terminal
from flexround.settings import layout
from flexround.settings.layout import PARAMS, ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.settings.validation import read_yaml

GOLDEN = Path(__file__).parent
TARGETS = {
    "mini": ("all", "results/report.html", "results/paper.pdf", "regress"),
    "real": ("all", "results/report.html", "results/paper.pdf"),
    "paper": ("all", "results/report.html", "results/paper.pdf"),
}
JOB = re.compile(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", re.MULTILINE)
SHOWN_DIFFERENCES = 12

MOBILENET, RESNET = ("imagenet", "mobilenetv2-brecq"), ("imagenet", "resnet18-brecq")
BERT, LLAMA, STREAMED = ("glue-rte", "bert-base"), ("commonsense", "llama-7b"), ("commonsense", "streamed")
RUNS = (  # every rounding, B and Q, a step per tensor and per channel (LLaMA), surgery, streamed weights
    (*MOBILENET, "b-flexround-w4"),
    (*MOBILENET, "cle-b-adaround-w4"),
    (*MOBILENET, "q-flexround-w3a3"),
    (*RESNET, "b-adaround-w3"),
    (*RESNET, "b-adaquant-w4"),
    (*RESNET, "b-adaquant-flexround-w3"),
    (*RESNET, "q-adaround-w4a4"),
    (*RESNET, "b-rtn-w2"),
    (*BERT, "q-flexround-w8a8"),
    (*LLAMA, "q-lrq-w4a8"),
    (*LLAMA, "b-gptq-w3"),
    (*LLAMA, "b-signround-w4"),
    (*STREAMED, "b-flexround-w3"),
)
BUDGET = {"samples": 32, "batch": 8, "iters": 12, "a_iters": 8, "a_init_samples": 16}
LOOSE = {"codes": {"abs": 0.02}, "step": {"rel": 1e-3}}  # where another processor rounds differently
MAY_BE_OFF = 0.5  # of the tensors: where Q drops, one other code changes all that is learned after it


def sha256(content):
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def of_array(array):
    return sha256(f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())


@pytest.fixture
def golden():
    """Return what is expected under a key of a golden file, or write what was found there and return that."""

    def read_or_write(name, key, found):
        path = GOLDEN / name
        packed = path.suffix == ".xz"
        content = path.read_bytes() if path.exists() else lzma.compress(b"{}") if packed else b"{}"
        expected = json.loads(lzma.decompress(content) if packed else content)
        if os.environ.get("WRITE_ORACLES"):
            expected[key] = found
            text = (json.dumps(expected, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(lzma.compress(text, preset=9) if packed else text)
        assert key in expected, f"{path}: {key}: missing; write it with WRITE_ORACLES=1"
        return expected[key]

    return read_or_write


@pytest.fixture
def check(golden):
    """Compare what was found, values by name, with what is expected under a key of a golden file."""

    def compare(name, key, found):
        expected = golden(name, key, found)
        different = [name for name in sorted(expected.keys() | found) if expected.get(name) != found.get(name)]
        lines = [f"{name}: {_difference(expected.get(name), found.get(name))}" for name in different]
        assert not lines, f"{key}: {len(lines)} differ\n" + "\n".join(lines[:SHOWN_DIFFERENCES])

    return compare


def _difference(expected, found):
    """Return what differs, in short."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [key for key in sorted(expected.keys() | found) if expected.get(key) != found.get(key)]
        return "; ".join(f"{key}: {_difference(expected.get(key), found.get(key))}" for key in keys[:3])
    if isinstance(expected, list) and isinstance(found, list):
        gone, new = ([x for x in one if x not in other] for one, other in ((expected, found), (found, expected)))
        return f"without {gone[:3]}, with {new[:3]}"
    return f"was {str(expected)[:80]}, is {str(found)[:80]}"


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return what a dry run of each scale prints."""
    found = {}
    for scale, targets in TARGETS.items():
        project = Project(tmp_path_factory.mktemp(scale))
        done = project.snakemake("--workflow-profile", "none", "--dry-run", *targets, config=(f"scale={scale}",))
        found[scale] = done.stdout + done.stderr
    return found


@pytest.mark.parametrize("scale", TARGETS)
def test_the_same_jobs_with_the_same_results_as_inputs(planned, scale, check):
    jobs = {}
    for rule, body in JOB.findall(planned[scale]):
        facts = dict(line.strip().split(": ", 1) for line in body.splitlines())
        inputs = [path for path in facts.get("input", "").split(", ") if path.startswith("results/")]
        jobs[f"{rule} {facts.get('wildcards', '')}".strip()] = sorted(inputs)
    check("jobs.json.xz", scale, jobs)


@pytest.mark.parametrize("scale", ["mini", "real"])
def test_the_same_renderings_of_what_is_published(scale, check):
    plan = Plan(load_params(scale))
    found = {}
    for table in plan.params.tables.values():
        path = published_results.find_published(ROOT, plan.scale, f"{table.name}.csv")
        if path is None:
            continue
        text = path.read_text()
        found[f"{table.name}.csv"] = sha256(text)
        for suffix, module in (("tex", latex), ("html", html), ("txt", terminal)):
            found[f"{table.name}.{suffix}"] = sha256(module.render(grid.load(io.StringIO(text)), table, plan.scale))
    check("published.json", scale, found)


def _made_up(root, run, of_task):
    """Write an evaluation: of a task's runs some examples are hard for all, and each run has a skill of its own."""
    shared, own = (np.random.default_rng(zlib.crc32(str(name).encode())) for name in (run.task, run))
    hardness, skill = shared.random(300), own.uniform(0.55, 0.85)
    score = skill + 0.3 * (hardness - 0.5) + own.normal(0, 0.02, 300)
    if not any(metrics.of(name).relative for name in of_task):
        table_runs.write_run(root, run, (score > 0.7).astype(np.uint8), of_task)
        return
    values = 100 * score.clip(0.05, 0.99)
    facts = {"metrics": dict.fromkeys(of_task, values.mean()), "stderr": dict.fromkeys(of_task, values.std(ddof=1))}
    table_runs.write_arrays(root, run, dict.fromkeys(of_task, values), kind="replicates", **facts)


@pytest.mark.parametrize("scale", ["mini", "real"])
def test_the_same_tables_and_claims_of_made_up_evaluations(tmp_path, scale, check):
    """From ``metrics.json`` to each CSV, TeX and HTML; a few evaluations are missing."""
    work = Work(scale, tmp_path)
    tables, figures = (getattr(work.plan, name)() for name in ("complete_tables", "complete_figures"))
    of_runs = [number for number in tables if work.params.tables[number].groups]
    of_task = {}
    for cell in (cell for number in of_runs for cell in work.params.tables[number].cells()):
        of_task.setdefault(cell.task, {}).update(dict.fromkeys(cell.metrics))
    runs = [run for number in of_runs for run in work.plan.table_runs(number)]
    specs = work.params.figures.figures
    sizes = [number for number in figures if next(s for s in specs if s.number == number).kind == "sizes"]
    runs += [run for number in sizes for run in work.plan.figure_runs(number)]
    for run in dict.fromkeys(runs):
        if zlib.crc32(str(run).encode()) % 41:
            _made_up(tmp_path / "results", run, list(of_task[run.task]))
    for number in tables:
        work.do("tabulate", number, out=f"results/{scale}/{work.params.tables[number].name}.csv")
    for stage, file in (("claims", "claims.csv"), ("summary", "metrics.json")):
        work.do(stage, out=f"results/{scale}/{file}")
    made = {path.name: path.read_bytes() for path in (tmp_path / "results" / scale).iterdir() if path.is_file()}
    assert {b"computed", b"missing"} <= set(re.findall(rb"computed|missing", b"".join(made.values())))
    check("made_up.json", scale, {name: sha256(content) for name, content in made.items()})


class Whole(Work):
    """All rows of each data set, as the frozen files have them."""

    def data(self, task):
        for name in self.params.scale.tasks[task].sources:
            self.do("fetch", name, out=layout.source_file(name))
        return self.do("data", task, out=self.place("data_dir", task))


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """Return mini with its own data and pinned networks, none of them trained further, and the budget of a moment."""
    root = tmp_path_factory.mktemp("mini")
    (root / "params").symlink_to(PARAMS)
    content = read_yaml(PARAMS / "scales/mini.yaml")
    content |= {"name": "oracles", "train": []}
    content["checkpoints"]["streamed"] = content["checkpoints"]["llama-7b"] | {"streamed": True, "finish": None}
    content["hyper"].append({"when": {}, "set": BUDGET, "source": "an oracle"})
    (root / "mini.yaml").write_text(yaml.safe_dump(content))
    params, short = load_params(str(root / "mini.yaml")), {}
    for name, recipe in params.recipes.recipes.items():  # SignRound's own budget would win
        hyper = recipe.hyper | (BUDGET if "iters" in recipe.hyper else {})
        short[name] = recipe.model_copy(update={"hyper": hyper})
    recipes = params.recipes.model_copy(update={"recipes": short})
    return Whole(root / "mini.yaml", root, params._replace(recipes=recipes))


@pytest.mark.parametrize("task", read_yaml(PARAMS / "scales/mini.yaml")["tasks"])
def test_the_same_rows(mini, task, check):
    data, found = mini.data(task), {}
    for path in data.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")]
        found[path.stem] = [len(rows), sha256(json.dumps(rows, sort_keys=True))]
    for path in data.glob("*.npy"):
        array = np.load(path)
        found[path.stem] = [len(array), of_array(array)]
    of_task = mini.task(task)
    if getattr(of_task.options, "heldout", 0):
        rows = of_task.split_rows(data, "heldout")
        found["heldout"] = [len(rows), sha256(json.dumps(rows, sort_keys=True))]
    drawn = of_task.calibration(data, 64, 0)
    found |= {f"calibration {name}": [len(array), of_array(array)] for name, array in drawn.items()}
    check("rows.json", task, found)


def _machine():
    """Return what the last bits of a sum depend on."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{(names or ['?'])[0]}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


@pytest.mark.parametrize(("task", "checkpoint", "recipe"), RUNS)
def test_the_same_codes(mini, task, checkpoint, recipe, golden, monkeypatch):
    """The very bits on a machine like that of the golden file, elsewhere the mean of each tensor."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    directory = _quantized(mini, mini.run(task, checkpoint, recipe))
    torch.set_num_threads(threads)
    files = [codes.read(path).tensors() for path in codes.files(directory)]
    tensors = {key: value.numpy() for of_file in files for key, value in of_file.items()}
    kinds = {"codes": {}, "step": {}, "zero_point": {}, "initial_step": {}, "parameter": {}}
    for key, array in sorted(tensors.items()):
        kind = "parameter" if key.startswith("parameter/") else key.rpartition(":")[2]
        kinds[kind][key] = array.astype(np.int64) if kind == "codes" else array
    found = {
        "machine": _machine(),
        "sha256": {kind: sha256("".join(map(of_array, arrays.values()))) for kind, arrays in kinds.items()},
        "means": {kind: {key: float(array.mean()) for key, array in kinds[kind].items()} for kind in LOOSE},
    }
    expected = golden("codes.json", f"{task}/{checkpoint}/{recipe}", found)
    if expected["machine"] == found["machine"]:
        assert found["sha256"] == expected["sha256"]
    for kind, tolerance in LOOSE.items():
        means, others = found["means"][kind], expected["means"][kind]
        assert means.keys() == others.keys()
        off = [key for key, mean in means.items() if mean != pytest.approx(others[key], **tolerance)]
        assert len(off) <= MAY_BE_OFF * len(means), (kind, off)


def _quantized(mini, run):
    """Make a network's pinned source, its weights and samples, and the run; its gate, a whole evaluation, is left."""
    source = mini.params.checkpoint(run.checkpoint).source
    mini.do("fetch", source, out=layout.source_file(source))
    mini.weights(run.task, run.checkpoint)
    mini.samples(run.task, BUDGET["samples"])
    return mini.do("reconstruct", run, out=layout.quantized_dir(run))
