"""Results published to a directory and pulled elsewhere, damaged and interrupted on the way; what dvc.yaml covers."""

import base64
import contextlib
import csv
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo
from published import TABLE, Clone, cloned, publish, remote, stages
from stage_calls import exit_code

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.results import frames
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools import dvc_cache, snakemake_records, verify

RUN = "results/smoke/quantized/imagenet/mobilenetv2-brecq/b-flexround-w4/seed0"
HEAVY = f"{RUN}/model.safetensors"
RECIPE = "\n  b-adaround-w4: {", "\n  b-adaround-w4: {hyper: {reg_weight: 0.5}, "
EDIT = ") -> str:\n", ") -> str | None:\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Publish a made-up smoke scale to a directory beside the project; no job of it needs the worker server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXROUND_WORKERS", "0")
        return publish(tmp_path_factory.mktemp("published") / "project")


@pytest.fixture(scope="module")
def pulled(published, tmp_path_factory):
    """Clone the published project, edit a recipe, then pull: results of other settings than the clone's."""
    clone = clone_of(published, tmp_path_factory.mktemp("pulled"))
    clone.edit("params/recipes.yaml", *RECIPE)
    clone.planned()  # so files of jobs are older than what is pulled
    clone.output = clone.make("pull", f"REMOTE={remote(published)}").stdout
    return clone


def clone_of(project, parent):
    """Clone a published project; its results are still in the remote, which the clone knows."""
    clone = cloned(project, parent)
    clone.environment = project.environment | clone.environment | {"FLEXROUND_WORKERS": "0"}
    text = f"[core]\n    remote = storage\n['remote \"storage\"']\n    url = {remote(project)}\n"
    (clone.root / ".dvc/config.local").write_text(text)  # as dvc remote add --local --default
    return clone


def ran(tool, capsys, *arguments):
    """Run a tool in this process; return its exit code and the lines that it prints."""
    return exit_code(tool, *arguments), capsys.readouterr().out.splitlines()


def record_name(output):
    """Return how Snakemake names the record of an output."""
    return base64.urlsafe_b64encode(output.encode()).decode()


def stored(project, path):
    """Return where the remote keeps a file, by its md5."""
    md5 = hashlib.md5((project.root / path).read_bytes()).hexdigest()
    return remote(project) / "files/md5" / md5[:2] / md5[2:]


@contextlib.contextmanager
def damaged(path):
    """Change the last byte of a file for a while."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    yield
    path.write_bytes(content)


def test_pulled_results_are_current_unless_settings_changed(pulled):
    assert re.search(r"results/smoke: \d\d files checked", pulled.output)
    planned = pulled.planned()
    assert (planned["reconstruct"], planned["evaluate"], planned["tabulate"]) == (2, 2, 1)
    pulled.edit("params/recipes.yaml", *reversed(RECIPE))
    assert pulled.planned() == {}


def test_a_wrong_byte_in_the_remote_is_named_before_a_checkout(published, tmp_path):
    clone = clone_of(published, tmp_path)
    with damaged(stored(published, HEAVY)):
        done = clone.make("pull", f"REMOTE={remote(published)}", check=False)
    assert done.returncode != 0
    assert f"{HEAVY}: no whole copy, files/md5/" in done.stdout
    assert not (clone.root / "results").exists()
    clone.make("pull")
    assert (clone.root / HEAVY).read_bytes() == (published.root / HEAVY).read_bytes()
    assert (clone.root / "results/smoke/metrics.json").exists()


@pytest.mark.parametrize(
    ("name", "link", "refused"),
    [
        ("../../../x", "", True),
        ("/x", "", True),
        ("s/x", "results/data/s", True),
        ("s/x", "results", False),  # results on another disk are the user's choice
    ],
)
def test_a_remote_writes_in_its_outputs_alone(tmp_path, monkeypatch, name, link, refused):
    (root := tmp_path / "a/clone").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(root)
    with Repo.init(no_scm=True) as repo:
        cache = Path(repo.cache.local.path)
    listed = [{"md5": hashlib.md5(b"evil").hexdigest(), "relpath": name}]
    for kind, content in {"": b"evil", ".dir": json.dumps(listed).encode()}.items():
        md5 = hashlib.md5(content).hexdigest() + kind
        artifacts.write_bytes(cache / md5[:2] / md5[2:], content)
    if link:
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        Path(link).symlink_to(tmp_path / "other")
    outs = {"dvc.yaml": "results/data", "dvc.lock": {"path": "results/data", "hash": "md5", "md5": md5}}
    for file, out in outs.items():
        content = {"schema": "2.0", "stages": {"it": {"cmd": "it", "outs": [out]}}}
        Path(file).write_text(yaml.safe_dump(content if file == "dvc.lock" else {"stages": content["stages"]}))
    with pytest.raises(InputError) if refused else contextlib.nullcontext():
        dvc_cache.run(dvc_cache.parser().parse_args([]))
        with Repo() as repo:
            repo.checkout()
    written = [path for path in tmp_path.rglob("*x") if path.is_file()]
    assert written == ([] if refused else [Path("results/data", name).resolve()])


def test_what_is_wrong_is_named_with_what_it_touches(pulled, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pulled.root / "results", "results")
    shutil.copy2(pulled.root / "smoke.yaml", tmp_path)
    results = Path("results/smoke")
    (results / "quantized/imagenet/extra.bin").write_text("")
    (results / "data/imagenet/model.safetensors").unlink()
    metrics = Path(RUN.replace("quantized", "evaluated"), "metrics.json")
    content = json.loads(metrics.read_text())
    content["metrics"]["top1"] += 1
    metrics.write_text(json.dumps(content))
    with damaged(Path(HEAVY)):
        code, lines = ran(verify, capsys, "--scale", "smoke.yaml")
    assert code == 1
    told = "\n".join(lines)
    data = "results/smoke/data/imagenet"
    assert f"{data}/model.safetensors: missing although {data}/manifest.json lists it; touches table10, figure" in told
    assert f"{HEAVY}: its sha256 is not the one in its manifest; touches table10, figure4" in told
    assert f"{metrics}: metrics.top1 = " in told
    assert "results/smoke/table10.csv: " in told, "the evaluation gives another value"
    assert "results/smoke/quantized/imagenet/extra.bin: no manifest lists it; touches nothing" in told
    assert lines[-1].startswith("5 wrong, missing or unlisted")


@pytest.mark.parametrize("changed", ["value", "p_value", "row", "tex"])
def test_every_number_of_a_table_is_verified(published, monkeypatch, changed):
    monkeypatch.chdir(published.root)
    results, params = Path("results/smoke"), load_params("smoke.yaml")
    assert list(verify.untrue(results, params)) == []
    path = results / f"table10.{changed if changed == 'tex' else 'csv'}"
    text = path.read_text()
    lines = list(csv.DictReader(text.splitlines()))
    if path.suffix != ".csv":
        path.write_text(re.sub(r"(\d\d)\.\d", r"\1.0", text))
    elif changed == "row":
        path.write_text(frames.text(frames.made((line for line in lines if line["row"] != lines[-1]["row"]), lines[0])))
    else:
        line = next(line for line in lines if line[changed])
        line[changed] = "1" if line[changed] != "1" else "0"
        path.write_text(frames.text(frames.made(lines, lines[0])))
    try:
        assert path in [place for place, _ in verify.untrue(results, params)]
    finally:
        path.write_text(text)


def test_a_table_is_published_alone(published, tmp_path):
    shutil.copytree(published.root, tmp_path / "project", symlinks=True)
    project = Clone(tmp_path / "project")
    shutil.rmtree(project.root / ".dvc/cache")
    (project.root / "results/smoke/figure7.pdf").unlink()
    assert project.make("push", f"REMOTE={remote(project)}", check=False).returncode
    project.make("push", "ENTRIES=table-10")
    clone = clone_of(project, tmp_path)
    shutil.copy2(project.root / "dvc.lock", clone.root)
    (clone.root / ".dvc/config.local").unlink()
    assert clone.make("pull", f"REMOTE={tmp_path}/nowhere", check=False).returncode
    assert not (clone.root / ".dvc/config.local").exists()
    clone.make("pull", "ENTRIES=table-10", f"REMOTE={remote(project)}")
    assert {path.name for path in (clone.root / "results/smoke").iterdir() if path.is_file()} == {*TABLE}


def test_what_is_not_whole_or_current_is_not_published(published):
    lock = (published.root / "dvc.lock").read_text()
    with damaged(published.root / HEAVY):
        done = published.make("push", check=False)
    assert done.returncode != 0
    assert HEAVY in done.stdout
    published.edit("src/flexround/results/render/latex.py", *EDIT)
    done = published.make("push", check=False)
    published.edit("src/flexround/results/render/latex.py", *reversed(EDIT))
    assert done.returncode != 0
    assert "not published" in done.stderr
    assert (published.root / "dvc.lock").read_text() == lock


def test_a_pull_makes_the_copies_of_a_scales_own_series(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results, made = Path("results/own"), ("own1.csv", "own1.tex", "figure1.png", "claims.csv", "metrics.json")
    for name in (*made, "data/a/rows.csv", f"records/{record_name('results/own/own1.csv')}"):
        artifacts.write_text(results / name, name)
    for name, scale in (("own1.csv", "own"), ("own1.tex", "another")):
        artifacts.write_text(Path("results", name), "older")
        record = Path(".snakemake/metadata", record_name(f"results/{name}"))
        artifacts.write_json(record, {"input": [f"results/{scale}/{name}"]})
    snakemake_records.restore(results, results / "records", [results])
    copies = {path.name: path.read_text() for path in Path("results").iterdir() if path.is_file()}
    expected = {*made} - {"metrics.json", "own1.tex"}  # Snakemake would take it for that of the other scale
    assert copies == {name: name for name in expected}


def test_every_output_of_the_mini_scale_is_stored_once(published):
    summary = published.run("snakemake", "--summary", "--config", "scale=mini").stdout.splitlines()[1:]
    outputs = {line.split("\t")[0] for line in summary if line.startswith("results/mini/")}
    assert len(outputs) > 900
    paths = [path for _, outs in stages().values() for path in outs]
    holders = {output: [p for p in paths if output == p or output.startswith(f"{p}/")] for output in outputs}
    assert {output: found for output, found in holders.items() if len(found) != 1} == {}
    others = set(paths) - {path for found in holders.values() for path in found}
    assert others == {"logs/mini", "results/mini/records"}
    files = ("metrics.json", "predictions.safetensors")
    kinds = [output for output in outputs if Path(output).parts[2] in (*verify.KINDS, "gates")]
    made = {str(Path(output).parent) if output.endswith(files) else output for output in kinds}
    assert made == set(verify.served(Plan(load_params("mini"))))


def test_every_table_figure_and_task_is_a_stage():
    plan = Plan(load_params("mini"))
    found = stages()
    expected = [f"table@{n}" for n in plan.complete_tables()] + [f"figure@{n}" for n in plan.complete_figures()]
    assert sorted(name for name in found if not name.startswith(("task@", "shared", "records"))) == sorted(expected)
    assert {name for name in found if name.startswith("task@")} == {f"task@{task}" for task in plan.scale.tasks}
    made = snakemake_records.goals("task@glue-mrpc", *found["task@glue-mrpc"][:1], plan)
    assert made == ["results/figure5.pdf", "results/table15.csv", "results/table4.csv"]


def test_no_output_is_deleted_and_artifacts_are_the_networks():
    storage = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    outs = [out for entry in storage["stages"].values() for out in entry.get("do", entry)["outs"]]
    assert all(list(out.values()) == [{"persist": True}] for out in outs)
    paths = {each["path"] for each in storage["artifacts"].values()}
    assert paths == {str(path.relative_to(ROOT)) for path in (ROOT / "params/networks").iterdir()}
