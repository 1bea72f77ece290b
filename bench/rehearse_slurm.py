"""Run targets under a private Slurm with faults, and compare all files with those of a run without.

    make rehearse-slurm                                  # a small table
    make rehearse-slurm SLURM_SCALE=rehearsal TARGETS=results/table7.csv CONFIG=seeds=1
    python bench/rehearse_slurm.py --by-hand             # start the cluster, to try things on it

Two faults are made while a reconstruction is at work: a node is killed as by a power cut, and Slurm queues its job
again; a job is halted until it has run out of its time, and Snakemake starts it again with more.

The Slurm has two nodes on this machine, each a slurmd of its own. It needs slurmctld, slurmd and munged (Debian:
``apt install slurm-wlm munge``), and no systemd, no database, no root. GPUs and memory are only declared.
"""

import argparse
import collections
import contextlib
import getpass
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import yaml
from project_copy import copy
from result_hashes import differences, hashes

from flexround.settings.layout import ROOT, SOURCES

NEEDED = ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "squeue", "scontrol", "sinfo", "srun")
NODES = ("a", "b")
SECONDS = 60.0  # in which daemons come up or end
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))  # a user's own often lacks the last two
STAGE, MINUTES, LINES = "reconstruct", 2, 6  # whose jobs meet the faults, its time, lines in its log by then
DOWN_SECONDS = 30.0  # from a node's death to its return

# A job that is requeued waits until its credential has expired: two minutes if cred_expire does not say less.
# There is no accounting, so squeue must see ended jobs (MinJobAge); jobs.log has a line for each.
CONFIGURATION = """\
ClusterName=rehearsal
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge/socket,cred_expire=10
StateSaveLocation={directory}/controller
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdSpoolDir={directory}/%n
SlurmdPidFile={directory}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
MinJobAge=3600
KillWait=5
SchedulerParameters=sched_interval=5,bf_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/jobs.log
{nodes}
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP
"""
NODE = "NodeName={} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs=1 RealMemory=8000 Gres=gpu:a100:1 State=UNKNOWN"


class Failed(Exception):
    """Slurm that is missing or did not come up, a run that failed, a file that differs, a fault that was not made."""


class Cluster:
    """A private Slurm; its daemons are children of this process.

    All files lie in ``directory``. Its path must be short, because munge's socket is one of them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.daemons = directory.resolve(), dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join((str(self.directory / "bin"), PATH))
        self.environment = os.environ | {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": path}

    def up(self) -> None:
        """Start the daemons and wait until both nodes take jobs."""
        if absent := [name for name in NEEDED if shutil.which(name, path=PATH) is None]:
            raise Failed(f"not installed: {', '.join(absent)}; on Debian: apt install slurm-wlm munge")
        for name in ("bin", "munge", "controller", *NODES):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "munge").chmod(0o711)
        self._configure()
        self._start_munge()
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        idle = [f"{node} idle" for node in NODES]
        state = ("sinfo", "--noheader", "--Node", "--format=%N %T")
        self._wait(lambda: sorted({*self.command(*state, check=False).splitlines()}) == idle, "the nodes are not idle")

    def _configure(self) -> None:
        """Write the configuration, with free ports."""
        with contextlib.ExitStack() as stack:  # all sockets at once, so that no port is given out twice
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + len(NODES))]
            port, *ports = [one.getsockname()[1] for one in sockets]
        host = socket.gethostname()
        nodes = "\n".join(NODE.format(name, host, own) for name, own in zip(NODES, ports, strict=True))
        values = {"host": host, "port": port, "user": getpass.getuser(), "directory": self.directory, "nodes": nodes}
        (self.directory / "slurm.conf").write_text(CONFIGURATION.format(**values))
        (self.directory / "gpu").touch()  # Slurm counts only GPUs that are files
        gres = "".join(f"NodeName={node} Name=gpu Type=a100 File={self.directory}/gpu\n" for node in NODES)
        (self.directory / "gres.conf").write_text("AutoDetect=off\n" + gres)
        # Snakemake's job steps drop SLURM_CONF from the environment, so srun must know this cluster.
        wrapper, conf = self.directory / "bin/srun", shlex.quote(self.environment["SLURM_CONF"])
        wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {shutil.which("srun", path=PATH)} "$@"\n')
        wrapper.chmod(0o755)

    def _start_munge(self) -> None:
        """Start munged with a key of its own; --force: the directory may lie in a world-writable one such as /tmp."""
        at = self.directory / "munge"
        (at / "key").touch(mode=0o600)
        (at / "key").write_bytes(secrets.token_bytes(128))
        files = (f"--{name}={at / name.partition('-')[0]}" for name in ("key-file", "socket", "pid-file", "seed-file"))
        self._start("munged", "munged", "--foreground", "--force", *files)
        self._wait((at / "socket").exists, "munged has no socket")

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node; a node that was killed takes jobs again."""
        self._start(node, "slurmd", "-D", "-c", "-N", node)

    def _start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground of a session of its own; its log is ``NAME.log``."""
        with open(self.directory / f"{name}.log", "a") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill_node(self, node: str) -> list[int]:
        """Kill a node as a power cut would, tell Slurm that it is down, and return the killed processes."""
        killed = [self.daemons[node].pid, *self._steps(node)]
        send(killed, signal.SIGKILL)
        self.daemons[node].wait()
        self._wait(lambda: not list(self.job_processes(node)), f"processes of node {node} are left")
        self.command("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")
        return killed

    def job_processes(self, node: str) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """Yield process and environment of all processes of a node's jobs: the environment names cluster and node."""
        wanted = {"SLURMD_NODENAME": node, "SLURM_CONF": self.environment["SLURM_CONF"]}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                if wanted.items() <= (environment := process.environ()).items():
                    yield process, environment

    def _steps(self, node: str) -> list[int]:
        """Return the processes of a node's jobs, and the daemons of their steps, which hide their environment."""
        found = set()
        for process, _ in self.job_processes(node):
            found.add(process.pid)
            with contextlib.suppress(psutil.Error):
                found |= {parent.pid for parent in process.parents()[:1] if parent.name() == "slurmstepd"}
        return list(found)

    def jobs(self) -> list[dict[str, str]]:
        """Return what jobs.log says of each ended job; a job that was requeued has an entry for each run."""
        log = self.directory / "jobs.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]

    def command(self, *command: str, check: bool = True) -> str:
        """Return what a command of Slurm prints, asked of this cluster; it may fail unless there is a ``check``."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}; see {self.directory}/*.log")
        return done.stdout

    def down(self) -> None:
        """End jobs and daemons; logs stay."""
        self.command("scancel", "--user", getpass.getuser(), check=False)
        with contextlib.suppress(Failed):
            self._wait(lambda: not self.command("squeue", "--noheader", check=False), "jobs are left", 20)
        send([pid for node in NODES for pid in self._steps(node)], signal.SIGKILL)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            daemon.wait(SECONDS)

    def _wait(self, condition: Callable[[], object], lacks: str, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"{lacks} after {seconds:g} s; see {self.directory}/*.log")
            time.sleep(0.5)


def send(processes: Iterable[int], number: int) -> None:
    """Send a signal to the processes that still run."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it."""
    cluster = Cluster(directory)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


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
    """Run Snakemake in a project and return its minutes."""
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
    """Do both runs and print a summary."""
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
    except Failed as error:
        sys.exit(f"error: {error} (in {scratch})")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
