"""Run targets under a private Slurm with faults, and compare all files with those of a run without.

    make rehearse-slurm                                  # a small table
    make rehearse-slurm PROJECT=rehearsal SLURM_SCALE=rehearsal TARGETS=results/table7.csv

Two faults are made while a stage is at work: a node is killed as by a power cut, and Slurm queues its job again; a job
is halted until it has run out of its time, and Snakemake starts it again with more. ``local_slurm.py`` says what is
needed.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from local_slurm import NODES, Cluster, SlurmError

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "params", "workflow", "profiles", "Snakefile", "results/sources")
SCALE = ROOT / "tests/slurm_scale.yaml"
TARGETS = ["results/table10.csv"]
MEASURED = ("seconds", "peak_mb", "content_sha256")  # in metrics.json and record.json; the last is of the others, too
POLL_SECONDS = 0.2
DOWN_SECONDS = 30.0  # from a node's death to its return


class Differs(Exception):
    """What went otherwise than it should."""


def copy(project: Path, to: Path) -> Path:
    """Copy what a run of the project needs, without results; return where it is."""
    for name in COPIED:
        source, target = project / name, to / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return to


def hashes(project: Path) -> dict[str, str]:
    """Return file -> sha256 of all results of a project but its sources; of JSON without what is measured."""
    results = project / "results"
    files = {str(path.relative_to(results)): path for path in sorted(results.rglob("*")) if path.is_file()}
    return {name: _hash(path) for name, path in files.items() if not name.startswith("sources/")}


def _hash(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".json":
        content = json.dumps(_unmeasured(json.loads(content))).encode()
    return hashlib.sha256(content).hexdigest()


def _unmeasured(value: Any) -> Any:
    """Return a JSON value without seconds and memory."""
    if isinstance(value, dict):
        return {key: _unmeasured(one) for key, one in value.items() if key not in MEASURED}
    return [_unmeasured(one) for one in value] if isinstance(value, list) else value


@dataclasses.dataclass(eq=False)
class Faults(threading.Thread):
    """Kills the node of one job of a stage and halts another job of it, each when its log has ``lines`` lines."""

    cluster: Cluster
    stage: str
    lines: int

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.made: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Make both faults, each on a job of its own."""
        try:
            job, node = self._at_work(set())
            killed = self.cluster.kill_node(node)
            self.made.append(f"node {node} killed with {len(killed)} processes, job {job} among them")
            if not self.ended.wait(DOWN_SECONDS):
                self.cluster.start_node(node)
            other, node = self._at_work({job})
            halted = [pid for pid, found in self._processes(node) if found == other]
            for pid in halted:
                os.kill(pid, signal.SIGSTOP)
            self.made.append(f"job {other} halted on node {node} until its time is up")
        except InterruptedError:
            pass

    def _at_work(self, but: set[str]) -> tuple[str, str]:
        """Wait for a job of the stage with so many lines in its log; return it and its node."""
        while not self.ended.wait(POLL_SECONDS):
            for node in NODES:
                for pid, job in self._processes(node):
                    with contextlib.suppress(OSError):  # it has just ended
                        if job not in but and Path(f"/proc/{pid}/fd/1").read_bytes().count(b"\n") >= self.lines:
                            return job, node
        raise InterruptedError

    def _processes(self, node: str) -> Iterable[tuple[int, str]]:
        """Yield process and job of the stage's own processes on a node."""
        for pid, environment in self.cluster.job_processes(node):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[1:3] == ["-m", f"flexround.jobs.{self.stage}"]:
                    yield pid, environment.get("SLURM_JOB_ID", "?")


def snakemake(project: Path, environment: dict[str, str], arguments: list[str], log: Path) -> float:
    """Run Snakemake in a project and return its minutes.

    Raises:
        Differs: it failed.
    """
    start = time.monotonic()
    environment = environment | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    with open(log, "w") as file:
        command = [sys.executable, "-m", "snakemake", *arguments]
        code = subprocess.run(command, cwd=project, env=environment, stdout=file, stderr=file, check=False).returncode
    if code != 0:
        raise Differs(f"{project}: Snakemake ended with {code}; see {log}")
    return (time.monotonic() - start) / 60


def small_profile(project: Path, stage: str, minutes: int) -> Path:
    """Return a copy of the Slurm profile for two jobs at a time, with a GPU and minutes per attempt for a stage."""
    profile = yaml.safe_load((project / "profiles/slurm/profile.yaml").read_text())
    profile |= {"jobs": 2, "latency-wait": 10, "slurm-init-seconds-before-status-checks": 5}
    more = {"runtime": f"{minutes} * attempt", "gres": f"gpu:{Cluster.gpu_model}:1"}
    profile["set-resources"][stage] = profile["set-resources"].get(stage, {}) | more
    directory = project / "profiles/small"
    directory.mkdir(exist_ok=True)
    (directory / "profile.yaml").write_text(yaml.safe_dump(profile))
    return directory


def resumed(project: Path) -> int:
    """Return the number of runs whose log says that they went on after a block."""
    return sum("resuming after block" in path.read_text() for path in (project / "logs").rglob("*.log"))


def compare(local: dict[str, str], slurm: dict[str, str]) -> None:
    """Check that two runs have the same files with the same bytes.

    Raises:
        Differs: they don't.
    """
    wrong = sorted(name for name in local.keys() | slurm.keys() if local.get(name) != slurm.get(name))
    if wrong or not local:
        raise Differs(f"{len(wrong)} of {len(local)} files differ: {', '.join(wrong[:10])}")


def rehearse(given: argparse.Namespace, scratch: Path) -> None:
    """Do both runs and print what came of them.

    Raises:
        Differs: a run failed, a file differs, or a fault was not made or not survived.
        SlurmError: Slurm is missing or did not come up.
    """
    scale = Path(given.scale).resolve() if Path(given.scale).is_file() else given.scale
    common = [*given.targets, "--config", f"scale={scale}", *given.config]
    cluster = Cluster(scratch / "cluster", given.cpus, given.memory_mb, 1)
    cluster.up()
    try:
        project = copy(given.project, scratch / "slurm")
        faults = Faults(cluster, given.stage, given.lines)
        if not given.no_faults:
            faults.start()
        profile = ["--workflow-profile", str(small_profile(project, given.stage, given.minutes))]
        minutes = snakemake(project, cluster.environment, [*profile, *common], scratch / "slurm.log")
        faults.ended.set()
        jobs = cluster.jobs()
    finally:
        cluster.down()
    states = collections.Counter(job["JobState"] for job in jobs)
    print(f"Slurm: {len(jobs)} jobs in {minutes:.1f} min: " + ", ".join(f"{n} {name}" for name, n in states.items()))
    print(*faults.made, sep="\n")
    if not given.no_faults and not (states["NODE_FAIL"] and states["TIMEOUT"]):
        raise Differs("a fault was not made: no job of the stage ran long enough; see --lines")
    print(f"runs that went on after a block: {resumed(project)}")
    if given.reference:
        local = given.reference
    else:
        local = copy(given.project, scratch / "local")
        minutes = snakemake(local, dict(os.environ), ["--cores", "2", *common], scratch / "local.log")
        print(f"local: {minutes:.1f} min")
    compare(hashes(local), found := hashes(project))
    print(f"{len(found)} files, all equal")


def main() -> None:
    """Rehearse as the command line says; exit with 1 and one line if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="of Snakemake")
    parser.add_argument("--project", type=Path, default=ROOT, help="what is copied and run")
    parser.add_argument("--scale", default=str(SCALE), help="a scale's name in that project, or a file")
    parser.add_argument("--config", nargs="*", default=[], help="more for Snakemake's --config, e.g. seeds=1")
    parser.add_argument("--reference", type=Path, help="a finished run to compare with; none: one is made here")
    parser.add_argument("--scratch", type=Path, help="for the copies, kept; none: a temporary directory")
    parser.add_argument("--stage", default="reconstruct", help="whose jobs meet the faults")
    parser.add_argument("--minutes", type=int, default=2, help="that a job of the stage has, times its attempt")
    parser.add_argument(
        "--lines", type=int, default=6, help="in a job's log when a fault comes: it has finished blocks"
    )
    parser.add_argument("--cpus", type=int, default=1, help="that each of the two nodes declares")
    parser.add_argument("--memory-mb", type=int, default=8000, help="that each of the two nodes declares")
    parser.add_argument("--no-faults", action="store_true")
    given = parser.parse_args()
    scratch = (given.scratch or Path(tempfile.mkdtemp(prefix="slurm-"))).resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        rehearse(given, scratch)
    except (Differs, SlurmError) as error:
        sys.exit(f"error: {error} (in {scratch})")
    if not given.scratch:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
