"""Kill every stage, Snakemake, the workers' server, pushes and pulls at random moments; then do the same again.

    PYTHONPATH=tests:worlds python bench/kills.py --stages 440 --workflow 20 --rehearsal 20 --storage 40  # an hour

Afterwards all results have the bits of an undisturbed run, nothing is left over, and nothing half-written was ever
taken for a result. A stage is killed (SIGKILL) after a random time, or at a random call that changes the file system.
What Snakemake does between two runs is done here, too: it deletes the declared outputs of a job that was killed.
"""

import argparse
import collections
import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import published
import stage_calls
import test_streaming
import yaml
from rehearse_slurm import hashes
from safetensors.torch import load_file

from flexround import artifacts, unfinished
from flexround.errors import InputError
from flexround.models import build
from flexround.rehearsal import project as rehearsed
from flexround.results import evaluated
from flexround.settings.load import read_scale
from flexround.stages import finetune

ROOT = Path(__file__).resolve().parents[1]
IMAGES, TEXTS = ("imagenet", "mobilenetv2-brecq"), ("wikitext2", "gpt-neo-125m")
CHANGES = ("replace", "fsync", "unlink", "link", "mkdir", "rename")  # of os, at which a stage is killed
CHAIN = 3  # kills of one run, at most


class Wrong(Exception):
    """What no kill may lead to."""


class Stage(NamedTuple):
    """A job that is killed: what makes it again, and the files or the directory that its rule declares."""

    name: str
    run: Callable[[], object]
    outputs: tuple[Path, ...]

    def remove(self) -> None:
        """Delete the outputs, as Snakemake does before it runs the job again."""
        for path in self.outputs:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)


def stages(root: Path, wanted: str) -> list[Stage]:
    """Make what a small scale and a streamed network have, and return the jobs with ``wanted`` in their name."""
    unfinished.WORTH_SECONDS = 0.0  # everything is worth being kept
    finetune.sources.verify = lambda *_: "0" * 64  # the streamed source is made here
    work = stage_calls.Work(ROOT / "tests/smoke.yaml", root)
    texts = streamed(root) if any(wanted in name for name in ("reconstruct, streamed", "evaluate texts")) else work
    jobs = [
        ("data", work, "data", IMAGES[:1]),
        ("fine-tune", work, "weights", IMAGES),
        ("calibrate", work, "samples", (IMAGES[0], 64)),
        ("reconstruct, B", work, "quantized", (*IMAGES, "b-flexround-w4")),
        ("reconstruct, Q", work, "quantized", (*IMAGES, "q-flexround-w4a4")),
        ("reconstruct, streamed", texts, "quantized", (*TEXTS, "q-flexround-w8a8")),
        ("evaluate", work, "evaluated", (*IMAGES, "b-flexround-w4")),
        ("evaluate texts", texts, "evaluated", (*TEXTS, "q-flexround-w8a8")),
    ]
    found = []
    for name, of, method, arguments in (job for job in jobs if wanted in job[0]):
        out = getattr(of, method)(*arguments)
        files = ("metrics.json", "predictions.safetensors") if method == "evaluated" else ()
        outputs = tuple(out / file for file in files) or (out,)
        found.append(Stage(name, functools.partial(getattr(of, method), *arguments, again=True), outputs))
    table = functools.partial(work.do, "tabulate", 10, out="results/smoke/table10.csv", again=True)
    if wanted not in "tabulate":
        return found
    table()
    outputs = tuple(root / f"results/smoke/table10.{suffix}" for suffix in ("csv", "tex", "html"))
    return [*found, Stage("tabulate", table, outputs)]


def streamed(root: Path) -> stage_calls.Work:
    """Return a scale whose network is read piece by piece from a directory of shards, which is made here."""
    settings = read_scale(str(ROOT / "tests/lm_scale.yaml"))
    first = stage_calls.Work(ROOT / "tests/lm_scale.yaml", root)
    trained = first.weights("corpus", TEXTS[1])
    directory = root / f"results/sources/hub/{TEXTS[1]}"
    directory.parent.mkdir(parents=True)
    test_streaming.store(directory, load_file(trained / "model.safetensors"))
    model = build.architecture(first.params.checkpoint(TEXTS[1]), {"head": "causal-lm"})
    (directory / "config.json").write_text(json.dumps(model.config.to_dict()))
    shutil.copy(trained / "tokenizer.json", directory)
    checkpoint = settings["checkpoints"][TEXTS[1]]
    checkpoint |= {"source": TEXTS[1], "streamed": True, "loader": "flexround.tasks.text.task:import_directory"}
    del checkpoint["pretrain"]
    (root / "streamed.yaml").write_text(yaml.safe_dump(settings | {"train": []}))
    return stage_calls.Work(root / "streamed.yaml", root)


output = tempfile.TemporaryFile()  # noqa: SIM115 - of the last fork, open while this runs


def forked(action: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> int:
    """Start ``action`` in a forked process with a group of its own; return its number."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.setsid()
            output.seek(0), output.truncate()
            os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
            prepare(), action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def counted(after: int) -> Iterator[int]:
    """Have this process killed at its call number ``after`` that changes the file system."""
    calls = itertools.count(1)

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if next(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return wrapper

    for name in CHANGES:
        setattr(os, name, watched(getattr(os, name)))
    return calls


def measured(stage: Stage) -> tuple[float, int]:
    """Return the seconds of an undisturbed run in a fork, and how often it changes the file system."""
    stage.remove()
    with tempfile.NamedTemporaryFile() as file:

        def run() -> None:
            calls = counted(0)
            stage.run()
            Path(file.name).write_text(str(next(calls)))

        start = time.monotonic()
        if os.waitpid(forked(run), 0)[1]:
            raise Wrong(f"{stage.name}: fails undisturbed")
        return time.monotonic() - start, int(Path(file.name).read_text())


def kill(stage: Stage, seconds: float, changes: int, rng: random.Random) -> bool:
    """Run a stage and kill it at a random moment; return whether it was at work then."""
    if rng.random() < 0.5:
        pid = forked(stage.run)
        time.sleep(rng.uniform(0, seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    else:
        pid = forked(stage.run, functools.partial(counted, rng.randint(1, changes)))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def check_whole(stage: Stage) -> None:
    """Refuse a half-written result that has what makes it one: its manifest, or its metrics."""
    for path in stage.outputs:
        try:
            if (path / "manifest.json").exists():
                artifacts.read_manifest(path)
            if path.name == "metrics.json" and path.exists():
                evaluated.compare(path, evaluated.read(path))
        except InputError as error:
            raise Wrong(f"{stage.name}: half a result looks whole: {error}") from error


def compare(found: dict[str, str], expected: dict[str, str], name: str) -> None:
    """Compare file -> sha256 with that of an undisturbed run."""
    for path in sorted(found.keys() | expected.keys()):
        if found.get(path) != expected.get(path):
            kind = "left over" if path not in expected else "missing" if path not in found else "other bits"
            raise Wrong(f"{name}: {kind}: {path}")


def check_equal(root: Path, expected: dict[str, str], name: str) -> None:
    """Compare all results with those of the undisturbed run."""
    compare(hashes(root), expected, name)
    if left := [path for path in root.rglob(".state/**/*") if path.is_file()]:
        raise Wrong(f"{name}: left over: {left[0]}")


def kill_stages(root: Path, kills: int, rng: random.Random, wanted: str, end: float) -> Iterator[str]:
    """Kill stages so many times, one after the other; yield the name of each that was at work when it was killed."""
    root.mkdir()
    jobs = stages(root, wanted)
    sizes = {stage.name: measured(stage) for stage in jobs}
    expected, done = hashes(root), 0
    for stage in itertools.cycle(jobs):
        stage.remove()
        for _ in range(rng.randint(1, CHAIN)):
            if kill(stage, *sizes[stage.name], rng):
                done += 1
                yield stage.name
            check_whole(stage)
            stage.remove()
        if os.waitpid(forked(stage.run), 0)[1]:
            output.seek(0)
            raise Wrong(f"{stage.name}: fails after a kill: {output.read().decode()[-4000:]}")
        check_equal(root, expected, stage.name)
        if done >= kills or time.monotonic() > end:
            return


def finished(process: subprocess.Popen[str], what: str) -> None:
    """Wait for a command that must succeed."""
    text, _ = process.communicate()
    if process.returncode:
        raise Wrong(f"{what}: {text[-2000:]}")


class Workflow(NamedTuple):
    """A project, what Snakemake makes in it, and how often it is killed before it may end."""

    project: published.Clone
    options: tuple[str, ...]
    chain: int

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake in a session of its own."""
        return self.project.start(sys.executable, "-m", "snakemake", "--cores", "2", *arguments, *self.options)

    def remove(self) -> None:
        """Delete all results but the sources, and what Snakemake remembers."""
        results = [path for path in (self.project.root / "results").iterdir() if path.name != "sources"]
        for path in (*results, self.project.root / ".snakemake"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def small(root: Path) -> Workflow:
    """Return a small table."""
    project = published.copied(root / "project")
    return Workflow(project, ("results/smoke/table10.csv", "--config", "scale=smoke.yaml"), 1)


def rehearsal(root: Path) -> Workflow:
    """Return tables 10 (images) and 20 (LLaMA, streamed) of the paper's scale, rehearsed: docs/rehearsal.md."""
    directory = root / "rehearsal"
    rehearsed.build(directory, "paper")
    project = published.Clone(directory)
    project.environment["HF_HUB_OFFLINE"] = "1"
    goals = ("results/table10.csv", "results/table20.csv")
    return Workflow(project, (*goals, "--config", f"scale={rehearsed.scale.NAME}", "seeds=1"), 4)


def kill_workflow(made: Workflow, kills: int, rng: random.Random, end: float) -> Iterator[str]:
    """Kill Snakemake or the workers' server at random moments, make the tables again and compare all results."""
    done, start = 0, time.monotonic()
    finished(made.start(), "undisturbed")
    expected, seconds = hashes(made.project.root), time.monotonic() - start
    while done < kills and time.monotonic() < end:
        made.remove()
        for _ in range(rng.randint(1, made.chain)):
            victim = rng.choice(["Snakemake", "the workers' server"])
            process = made.start("--rerun-incomplete")
            time.sleep(rng.uniform(0.1, 1) * seconds / made.chain)
            found = [process.pid] if victim == "Snakemake" else list(servers(made.project.root))
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()
            if found:
                done += 1
                yield victim
            finished(made.start("--unlock"), f"unlock after {victim}")
        finished(made.start("--rerun-incomplete"), f"again after {victim}")
        check_equal(made.project.root, expected, victim)


def kill_storage(root: Path, kills: int, rng: random.Random, end: float) -> Iterator[str]:
    """Kill pushes and pulls of a published scale at random moments, do them again and compare all files."""
    project = published.publish(root / "project")
    remote = published.remote(project)
    undisturbed: dict[str, tuple[float, dict[str, str]]] = {}
    done = 0
    for what in itertools.cycle(("push", "pull")):
        if what == "push":
            place = project
            shutil.rmtree(remote)
        else:
            place = published.cloned(project, root)
        command = (*published.MAKE, what, f"REMOTE={remote}")
        for _ in range(rng.randint(1, CHAIN) if what in undisturbed else 0):
            if kill_command(place, command, rng.uniform(0, undisturbed[what][0])):
                done += 1
                yield what
        start = time.monotonic()
        finished(place.start(*command), f"{what} after a kill")
        found = contents(remote) if what == "push" else hashes(place.root)
        compare(found, undisturbed.setdefault(what, (time.monotonic() - start, found))[1], what)
        if place is not project:
            shutil.rmtree(place.root)
        if done >= kills or time.monotonic() > end:
            return


def kill_command(project: published.Clone, command: tuple[str, ...], seconds: float) -> bool:
    """Start a command and kill it and all that it started after so many seconds; return whether it was at work."""
    process = project.start(*command)
    time.sleep(seconds)
    working = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return working


def contents(directory: Path) -> dict[str, str]:
    """Return file -> sha256 of a remote."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): artifacts.sha256(path) for path in files}


def servers(root: Path) -> Iterable[int]:
    """Yield the processes of workers' servers that belong to a project."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (path / "environ").read_bytes()
            if (
                b"flexround.jobs.server" in (path / "cmdline").read_bytes()
                and str(root / "src").encode() in environment
            ):
                yield int(path.name)


def main() -> None:
    """Kill, compare, and print how often what was killed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--stages", type=int, default=440, help="kills of stages")
    arguments.add_argument("--workflow", type=int, default=20, help="kills of Snakemake and of the workers' server")
    arguments.add_argument("--rehearsal", type=int, default=20, help="the same in a rehearsal of the paper's scale")
    arguments.add_argument("--storage", type=int, default=40, help="kills of pushes and pulls")
    arguments.add_argument("--only", default="", help="stages whose name has this in it")
    arguments.add_argument("--seconds", type=float, default=3600, help="after which no more is begun, of each kind")
    arguments.add_argument("--seed", type=int, default=0, help="of the random moments")
    given = arguments.parse_args()
    rng, start, done = random.Random(given.seed), time.monotonic(), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        try:
            if given.stages:
                end = time.monotonic() + given.seconds
                done.update(shown(kill_stages(Path(directory) / "stages", given.stages, rng, given.only, end)))
            if given.workflow:
                end = time.monotonic() + given.seconds
                done.update(shown(kill_workflow(small(Path(directory)), given.workflow, rng, end)))
            if given.rehearsal:
                end = time.monotonic() + given.seconds
                killed = shown(kill_workflow(rehearsal(Path(directory)), given.rehearsal, rng, end))
                done.update(f"{name}, rehearsal" for name in killed)
            if given.storage:
                end = time.monotonic() + given.seconds
                done.update(shown(kill_storage(Path(directory) / "storage", given.storage, rng, end)))
        except Wrong as error:
            sys.exit(f"WRONG: {error}")
    print(*(f"{name}: {count}" for name, count in done.items()), sep="\n")
    print(f"{done.total()} kills, nothing wrong; {time.monotonic() - start:.0f} s")


def shown(names: Iterable[str], what: str = "killed") -> Iterator[str]:
    """Yield names and say each."""
    for name in names:
        print(f"{what}: {name}", file=sys.stderr, flush=True)
        yield name


if __name__ == "__main__":
    main()
