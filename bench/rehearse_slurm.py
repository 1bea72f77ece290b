"""Run targets under a private Slurm with faults, and compare all files with those of a run without.

    make rehearse-slurm                                  # a small table
    make rehearse-slurm PROJECT=rehearsal SLURM_SCALE=rehearsal TARGETS=results/table7.csv
    python bench/rehearse_slurm.py --by-hand             # start the cluster, to try things on it

Two faults are made while a reconstruction is at work: a node is killed as by a power cut, and Slurm queues its job
again; a job is halted until it has run out of its time, and Snakemake starts it again with more.
"""

import argparse
import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import yaml
from private_slurm import NODES, Cluster, SlurmError, running, send
from result_hashes import differences, hashes

from flexround.rehearsal.project import copy
from flexround.settings.layout import ROOT, SOURCES

STAGE, MINUTES, LINES = "reconstruct", 2, 6  # whose jobs meet the faults, its time, lines in its log by then
DOWN_SECONDS = 30.0  # from a node's death to its return


class Failed(Exception):
    """A run that failed, a file that differs, or a fault that was not made."""


class Faults(threading.Thread):
    """Kills the node of one job of the stage and halts another job of it, each when its log has enough lines."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.made, self.ended = cluster, list[str](), threading.Event()

    def run(self) -> None:
        """Make both faults, each on a job of its own."""
        with contextlib.suppress(InterruptedError):
            first, node = self._at_work("")
            killed = self.cluster.kill_node(node)
            self.made.append(f"node {node} killed with {len(killed)} processes, job {first} among them")
            if not self.ended.wait(DOWN_SECONDS):
                self.cluster.start_node(node)
            job, node = self._at_work(first)
            send([process.pid for process, found in self._processes(node) if found == job], signal.SIGSTOP)
            self.made.append(f"job {job} halted on node {node} until its time is up")

    def _at_work(self, but: str) -> tuple[str, str]:
        """Wait for another job of the stage with so many lines in its log; return it and its node."""
        while not self.ended.wait(0.2):
            for node in NODES:
                for process, job in self._processes(node):
                    with contextlib.suppress(OSError):  # it has just ended
                        if job != but and Path(f"/proc/{process.pid}/fd/1").read_bytes().count(b"\n") >= LINES:
                            return job, node
        raise InterruptedError

    def _processes(self, node: str) -> Iterator[tuple[psutil.Process, str]]:
        """Yield process and job of the stage's own processes on a node."""
        for process, environment in self.cluster.job_processes(node):
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[1:4] == ["-m", "flexround.jobs", STAGE]:
                    yield process, environment.get("SLURM_JOB_ID", "?")


def snakemake(project: Path, environment: dict[str, str], arguments: list[str]) -> float:
    """Run Snakemake in a project and return its minutes.

    Raises:
        Failed: it failed.
    """
    start, log = time.monotonic(), project.with_suffix(".log")
    environment = environment | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    with open(log, "w") as file:
        command = [sys.executable, "-m", "snakemake", *arguments]
        code = subprocess.run(command, cwd=project, env=environment, stdout=file, stderr=file, check=False).returncode
    if code != 0:
        raise Failed(f"{project}: Snakemake ended with {code}; see {log}")
    return (time.monotonic() - start) / 60


def copied(project: Path, to: Path) -> Path:
    """Copy a project and its sources, without results; return where the copy is."""
    if (project / SOURCES).is_dir():
        shutil.copytree(project / SOURCES, to / SOURCES)
    return copy(to, project)


def small_profile(project: Path) -> Path:
    """Return a copy of the Slurm profile for two jobs at a time, with a GPU and little time for the stage."""
    profile = yaml.safe_load((project / "profiles/slurm/profile.yaml").read_text())
    profile |= {"jobs": 2, "latency-wait": 10, "slurm-init-seconds-before-status-checks": 5}
    more = {"runtime": f"{MINUTES} * attempt", "gres": "gpu:a100:1"}
    profile["set-resources"][STAGE] = profile["set-resources"].get(STAGE, {}) | more
    directory = project / "profiles/small"
    directory.mkdir(exist_ok=True)
    (directory / "profile.yaml").write_text(yaml.safe_dump(profile))
    return directory


def rehearse(given: argparse.Namespace, scratch: Path) -> None:
    """Do both runs and print a summary.

    Raises:
        Failed: a run failed, a file differs, or a fault was not made or not survived.
        SlurmError: Slurm is missing or did not come up.
    """
    scale = Path(given.scale).resolve() if Path(given.scale).is_file() else given.scale
    common = [*given.targets, "--config", f"scale={scale}", *given.config]
    with running(scratch / "cluster") as cluster:
        project, faults = copied(given.project, scratch / "slurm"), Faults(cluster)
        faults.start()
        profile = ["--workflow-profile", str(small_profile(project))]
        minutes = snakemake(project, cluster.environment, [*profile, *common])
        faults.ended.set()
        jobs = cluster.jobs()
    states = collections.Counter(job["JobState"] for job in jobs)
    print(f"Slurm: {len(jobs)} jobs in {minutes:.1f} min: " + ", ".join(f"{n} {name}" for name, n in states.items()))
    print(*faults.made, sep="\n")
    if not (states["NODE_FAIL"] and states["TIMEOUT"]):
        raise Failed("a fault was not made: no job of the stage ran long enough")
    logs = [path.read_text() for path in (project / "logs").rglob("*.log")]
    print(f"runs that went on after a block: {sum('resuming after block' in text for text in logs)}")
    if not (local := given.reference):
        local = copied(given.project, scratch / "local")
        print(f"local: {snakemake(local, dict(os.environ), ['--cores', '2', *common]):.1f} min")
    found = hashes(project)
    if wrong := differences(found, hashes(local)):
        raise Failed(f"{len(wrong)} of {len(found)} files differ: {', '.join(wrong[:10])}")
    print(f"{len(found)} files, all equal")


def main() -> None:
    """Rehearse as the command line says; exit with 1 and one line if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=["results/table10.csv"], help="of Snakemake")
    parser.add_argument("--project", type=Path, default=ROOT, help="what is copied and run")
    scale = str(ROOT / "tests/slurm_scale.yaml")
    parser.add_argument("--scale", default=scale, help="a scale's name in that project, or a file")
    parser.add_argument("--config", nargs="*", default=[], help="more for Snakemake's --config, e.g. seeds=1")
    parser.add_argument("--reference", type=Path, help="a finished run to compare with; none: one is made here")
    parser.add_argument("--by-hand", action="store_true", help="start the cluster alone, until Enter is pressed")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="slurm-"))  # it stays where something is wrong
    try:
        if given.by_hand:
            with running(scratch) as cluster:
                print(f"export SLURM_CONF={cluster.directory}/slurm.conf PATH={cluster.directory}/bin:$PATH")
                input("Enter ends it.")
        else:
            rehearse(given, scratch)
    except (Failed, SlurmError) as error:
        sys.exit(f"error: {error} (in {scratch})")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
