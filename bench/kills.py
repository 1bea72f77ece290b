"""Kill every stage, Snakemake, its workers' server, pushes and pulls at random moments, or fill the disk under stages.

    make kills                                                 # an hour on two cores
    PYTHONPATH=tests:worlds python bench/kills.py --stages 40 --workflow 0 --storage 0 --only calibrate
    make full-disk                                             # as root on Linux: it mounts a disk in memory

Then the same is done again. All results must have the bits of an undisturbed run, nothing may be left over, and nothing
half-written may ever look whole. A stage is killed (SIGKILL) after a random time, or at a random call that changes the
file system. With a full disk it must end with one message that names a file. Between two runs the declared outputs of a
job are deleted, as Snakemake does.
"""

import argparse
import collections
import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import forks
import published
import stage_calls
import test_streamed_stages
import torch
from result_hashes import differences, hashes

from flexround.errors import USER_ERROR, FlexRoundError, InputError
from flexround.io import artifacts, resume, sources
from flexround.results import evaluated

ROOT = Path(__file__).resolve().parents[1]
IMAGES, TEXTS = ("imagenet", "mobilenetv2-brecq"), test_streamed_stages.NAMES
# Calls that change the file system, at which a stage is killed.
CHANGES = [(os, name) for name in ("replace", "fsync", "unlink", "link", "mkdir", "rename")]
CHAIN = 3  # kills of one run, at most
PLENTY = 2**31  # bytes of the disk in memory
MORE = 1.2  # times a result's size: states and temporary files lie on the disk, too
SNAKEMAKE = (sys.executable, "-m", "snakemake", "--cores", "2")
TABLE = ("results/smoke/table10.csv", "--config", "scale=smoke.yaml")


class Wrong(Exception):
    """A state that no kill may lead to."""


class Stage(NamedTuple):
    """A job that is killed: how it is made again, and the files or the directory that its rule declares."""

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
    """Make all that a small scale and a streamed network have; return the jobs with ``wanted`` in their name."""
    resume.WORTH_SECONDS = 0.0  # everything is worth being kept
    sources.verify = lambda *_: "0" * 64  # the streamed source is made here
    work = stage_calls.Work(ROOT / "tests/smoke.yaml", root)
    texts = work
    if any(wanted in name for name in ("reconstruct, streamed", "evaluate texts")):
        test_streamed_stages.write_source(root)
        texts = test_streamed_stages.streamed(root)
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
    if wanted in "tabulate":
        table = functools.partial(work.do, "tabulate", 10, out="results/smoke/table10.csv", again=True)
        table()
        outputs = tuple(root / f"results/smoke/table10.{suffix}" for suffix in ("csv", "tex", "html"))
        found.append(Stage("tabulate", table, outputs))
    return found


def started(action: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> forks.Fork:
    """Start ``action`` in a forked process, which sends its exit code and what went wrong."""

    def attempt(pipe: Connection) -> None:
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        try:
            prepare(), action()
            pipe.send((0, ""))
        except FlexRoundError as error:
            pipe.send((USER_ERROR, str(error)))
        except BaseException:
            pipe.send((1, traceback.format_exc()))

    return forks.Fork(attempt)


def ended(fork: forks.Fork) -> tuple[int, str]:
    """Wait for a fork; return its exit code and what went wrong."""
    try:
        return fork.pipe.recv()
    except (EOFError, ConnectionResetError):  # it was killed
        return fork.ended(), ""


def measured(stage: Stage) -> tuple[float, int]:
    """Return the seconds of an undisturbed run in a fork, and how often it changes the file system."""
    stage.remove()
    start = time.monotonic()

    def changes() -> int:
        calls = forks.killed_at(0, *CHANGES)
        stage.run()
        return next(calls)

    (count,) = forks.results(changes, seconds=600)
    return time.monotonic() - start, count


def kill(stage: Stage, seconds: float, changes: int, rng: random.Random) -> bool:
    """Run a stage and kill it at a random moment; return whether it was at work then."""
    if rng.random() < 0.5:
        fork = started(stage.run)
        time.sleep(rng.uniform(0, seconds))
        fork.process.kill()
    else:
        fork = started(stage.run, functools.partial(forks.killed_at, rng.randint(1, changes), *CHANGES))
    return ended(fork)[0] == -signal.SIGKILL


def check_whole(stage: Stage) -> None:
    """Refuse a half-written result that looks whole by its manifest or its metrics."""
    for path in stage.outputs:
        try:
            if (path / "manifest.json").exists():
                artifacts.read_manifest(path)
            if path.name == "metrics.json" and path.exists():
                evaluated.compare(path, evaluated.read(path))
        except InputError as error:
            raise Wrong(f"{stage.name}: half a result looks whole: {error}") from error


def check_equal(found: dict[str, str], expected: dict[str, str], name: str, root: Path | None = None) -> None:
    """Compare file -> sha256 with that of an undisturbed run; nothing may be left in the states below ``root``."""
    if wrong := differences(found, expected):
        raise Wrong(f"{name}: {wrong[0]}")
    if left := [path for path in root.rglob(".state/**/*") if path.is_file()] if root else []:
        raise Wrong(f"{name}: left over: {left[0]}")


def disturbed(root: Path, jobs: Sequence[Stage], disturb: Callable[[Stage], int]) -> Iterator[str]:
    """Disturb stages, one after the other, for ever, and run each again; yield its name for each time it was hit."""
    expected = hashes(root)
    for stage in itertools.cycle(jobs):
        hits = disturb(stage)
        code, text = ended(started(stage.run))
        if code:
            raise Wrong(f"{stage.name}: fails undisturbed: {text[-4000:]}")
        check_equal(hashes(root), expected, stage.name, root)
        yield from [stage.name] * hits


def kill_stages(root: Path, rng: random.Random, wanted: str = "") -> Iterator[str]:
    """Kill stages; see ``disturbed``."""
    root.mkdir()
    jobs = stages(root, wanted)
    sizes = {stage.name: measured(stage) for stage in jobs}

    def kills(stage: Stage) -> int:
        stage.remove()
        killed = 0
        for _ in range(rng.randint(1, CHAIN)):
            killed += kill(stage, *sizes[stage.name], rng)
            check_whole(stage)
            stage.remove()
        return killed

    yield from disturbed(root, jobs, kills)


def mount(*arguments: object) -> None:
    """Mount; only root may."""
    done = subprocess.run(["mount", *map(str, arguments)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip())


@contextlib.contextmanager
def disk(place: Path) -> Iterator[Path]:
    """Mount a disk in memory at ``place``."""
    mount("-t", "tmpfs", "-o", f"size={PLENTY}", "tmpfs", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def used(place: Path) -> int:
    """Return the bytes that are taken on a disk."""
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def fill_disk(place: Path, rng: random.Random, wanted: str = "") -> Iterator[str]:
    """Run stages on a disk with too little room; see ``disturbed``."""
    root = place / "work"
    root.mkdir()

    def fill(stage: Stage) -> int:
        before = used(place)
        stage.remove()
        room = rng.uniform(0, MORE) * (before - used(place)) + os.sysconf("SC_PAGE_SIZE")
        mount("-o", f"remount,size={used(place) + int(room)}", place)
        code, text = ended(started(stage.run))
        mount("-o", f"remount,size={PLENTY}", place)
        if code not in (0, USER_ERROR) or "Traceback" in text:
            raise Wrong(f"{stage.name}: exit code {code}: {text[-2000:]}")
        if code and not any(part in text for part in (str(place), "results/", ".state")):
            raise Wrong(f"{stage.name}: the message names no file: {text[-500:]}")
        check_whole(stage)
        stage.remove()
        return int(code != 0)

    yield from disturbed(root, stages(root, wanted), fill)


def kill_workflow(root: Path, rng: random.Random) -> Iterator[str]:
    """Kill Snakemake or the workers' server at random moments, make a table again and compare all results, for ever."""
    project, start = published.copied(root), time.monotonic()
    project.run(*SNAKEMAKE, *TABLE)
    expected, seconds = hashes(root), time.monotonic() - start
    while True:
        for path in (root / "results", root / ".snakemake"):
            shutil.rmtree(path)
        victim = rng.choice(["Snakemake", "the workers' server"])
        process = project.start(*SNAKEMAKE, "--rerun-incomplete", *TABLE)
        time.sleep(rng.uniform(0.1, 1) * seconds)
        found = [process.pid] if victim == "Snakemake" else list(servers(root))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        project.run(*SNAKEMAKE, "--unlock", *TABLE)
        project.run(*SNAKEMAKE, "--rerun-incomplete", *TABLE)
        check_equal(hashes(root), expected, victim, root)
        if found:
            yield victim


def servers(root: Path) -> Iterator[int]:
    """Yield the processes of workers' servers that belong to a project."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_server = b"flexround.jobs.server" in (path / "cmdline").read_bytes()
            if is_server and str(root / "src").encode() in (path / "environ").read_bytes():
                yield int(path.name)


def kill_storage(root: Path, rng: random.Random) -> Iterator[str]:
    """Kill pushes and pulls of a published scale at random moments, do them again and compare all files, for ever."""
    project = published.publish(root / "project")
    remote = published.remote(project)
    undisturbed: dict[str, tuple[float, dict[str, str]]] = {}
    for what in itertools.cycle(("push", "pull")):
        if what == "push":
            shutil.rmtree(remote)
        place = project if what == "push" else published.cloned(project, root)
        command = (*published.MAKE, what, f"REMOTE={remote}")
        killed = 0
        for _ in range(rng.randint(1, CHAIN) if what in undisturbed else 0):
            process = place.start(*command)
            time.sleep(rng.uniform(0, undisturbed[what][0]))
            killed += process.poll() is None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and all that it started
            process.communicate()
        start = time.monotonic()
        place.run(*command)
        files = (path for path in remote.rglob("*") if path.is_file())
        found = {str(path): artifacts.sha256(path) for path in files} if what == "push" else hashes(place.root)
        check_equal(found, undisturbed.setdefault(what, (time.monotonic() - start, found))[1], what)
        if place is not project:
            shutil.rmtree(place.root)
        yield from [what] * killed


def main() -> None:
    """Kill or fill, compare, and print how often which job was hit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=440, help="kills of stages")
    parser.add_argument("--workflow", type=int, default=20, help="kills of Snakemake and of the workers' server")
    parser.add_argument("--storage", type=int, default=40, help="kills of pushes and pulls")
    parser.add_argument("--full-disk", type=int, default=0, help="in place of kills: stages that meet a full disk")
    parser.add_argument("--only", default="", help="stages whose name has this in it")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a fork would wait for ever for the threads of its parent
    rng, start, done = random.Random(given.seed), time.monotonic(), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        root = Path(directory)
        if given.full_disk:
            kinds = [(given.full_disk, fill_disk(stack.enter_context(disk(root)), rng, given.only))]
        else:
            kinds = [
                (given.stages, kill_stages(root / "stages", rng, given.only)),
                (given.workflow, kill_workflow(root / "project", rng)),
                (given.storage, kill_storage(root / "storage", rng)),
            ]
        try:
            for name in itertools.chain(*(itertools.islice(names, count) for count, names in kinds)):
                print(f"hit: {name}", file=sys.stderr, flush=True)
                done[name] += 1
        except Wrong as error:
            sys.exit(f"WRONG: {error}")
    print(*(f"{name}: {count}" for name, count in done.items()), sep="\n")
    print(f"{done.total()} times, nothing wrong; {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
