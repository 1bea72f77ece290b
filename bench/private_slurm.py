"""A private Slurm of two nodes on this machine, each a slurmd of its own, whose nodes can be killed.

It needs slurmctld, slurmd and munged (Debian: ``apt install slurm-wlm munge``), and no systemd, no database, no root.
GPUs and memory are only declared.
"""

import contextlib
import getpass
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

NEEDED = ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "squeue", "scontrol", "sinfo", "srun")
NODES = ("a", "b")
SECONDS = 60.0  # in which daemons come up or end
LONGEST_SOCKET = 107  # characters
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))  # a user's own often lacks the last two

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


class SlurmError(Exception):
    """A program that is missing, or a daemon that did not come up and where its log is."""


def missing() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [name for name in NEEDED if shutil.which(name, path=PATH) is None]


class Cluster:
    """A private Slurm; its daemons are children of this process.

    All files lie in ``directory``. Its path must be short, because munge's socket is one of them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.daemons = directory.resolve(), dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join((str(self.directory / "bin"), PATH))
        self.environment = os.environ | {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": path}

    def up(self) -> None:
        """Start the daemons and wait until both nodes take jobs.

        Raises:
            SlurmError: a program is missing, the path is too long, or a daemon did not come up.
        """
        if absent := missing():
            raise SlurmError(f"not installed: {', '.join(absent)}; on Debian: apt install slurm-wlm munge")
        if len(str(self.directory / "munge/socket")) > LONGEST_SOCKET:
            raise SlurmError(f"{self.directory}: its path is too long for a socket; take a shorter directory")
        for name in ("bin", "munge", "controller", *NODES):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "munge").chmod(0o711)
        self._configure()
        self._start_munge()
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        self._wait(lambda: self.states() == dict.fromkeys(NODES, "IDLE"), "the nodes are not idle")

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
        inside = {process.pid for process, _ in self.job_processes(node)}
        daemons = set()
        for pid in inside:
            with contextlib.suppress(psutil.Error):
                parent = psutil.Process(pid).parent()
                daemons |= {parent.pid} if parent and parent.name() == "slurmstepd" else set()
        return [*daemons, *inside]

    def states(self) -> dict[str, str]:
        """Return node -> its state as sinfo has it, e.g. IDLE."""
        found = self.command("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).split()
        return {node: state.upper() for node, state in zip(found[::2], found[1::2], strict=True)}

    def jobs(self) -> list[dict[str, str]]:
        """Return what jobs.log says of each ended job; a job that was requeued has an entry for each run."""
        log = self.directory / "jobs.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]

    def command(self, *command: str, check: bool = True) -> str:
        """Return what a command of Slurm prints, asked of this cluster.

        Raises:
            SlurmError: it failed, and ``check``.
        """
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise SlurmError(f"{' '.join(command)}: {done.stderr.strip()}; see {self.directory}/*.log")
        return done.stdout

    def down(self) -> None:
        """End jobs and daemons; logs stay."""
        self.command("scancel", "--user", getpass.getuser(), check=False)
        with contextlib.suppress(SlurmError):
            self._wait(lambda: not self.command("squeue", "--noheader", check=False), "jobs are left", 20)
        send([pid for node in NODES for pid in self._steps(node)], signal.SIGKILL)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            daemon.wait(SECONDS)

    def _wait(self, condition: Callable[[], object], lacks: str, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise SlurmError(f"{lacks} after {seconds:g} s; see {self.directory}/*.log")
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
