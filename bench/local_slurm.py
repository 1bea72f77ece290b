"""A private Slurm on this machine: two nodes, each a slurmd of its own, to rehearse a cluster with.

    python bench/local_slurm.py up --directory /scratch/slurm
    export SLURM_CONF=/scratch/slurm/slurm.conf PATH=/scratch/slurm/bin:$PATH      # for sbatch, squeue and Snakemake
    python bench/local_slurm.py status --directory /scratch/slurm
    python bench/local_slurm.py kill-node a --directory /scratch/slurm
    python bench/local_slurm.py start-node a --directory /scratch/slurm
    python bench/local_slurm.py down --directory /scratch/slurm

Needs slurmctld, slurmd and munged (Debian: ``apt install slurm-wlm munge``); no systemd, no database, no root. All
daemons run as the user who calls, and all that they write, key and socket included, is in the directory. What a node
has is only declared: GPUs are counted, jobs are not held to the memory and CPUs that they asked for.
"""

import argparse
import contextlib
import dataclasses
import getpass
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "squeue", "scontrol", "sinfo", "srun")
NODES = ("a", "b")
SECONDS = 60.0  # to come up, and to come down
LONGEST_SOCKET = 107  # characters

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
SlurmctldLogFile={directory}/slurmctld.log
SlurmdSpoolDir={directory}/%n
SlurmdPidFile={directory}/%n.pid
SlurmdLogFile={directory}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
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


class SlurmError(Exception):
    """What is missing or did not come up, and where its log is."""


def missing() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [name for name in NEEDED if shutil.which(name, path=_path()) is None]


def _path() -> str:
    """Return PATH with the directories of daemons, which a user's own often lacks."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


@dataclasses.dataclass
class Cluster:
    """A private Slurm.

    Args:
        directory: holds all its files; its path is short, since a socket lies in it.
        cpus, memory_mb, gpus, gpu_model: what each of the two nodes declares.
    """

    directory: Path
    cpus: int = 1
    memory_mb: int = 8000
    gpus: int = 1
    gpu_model: str = "a100"

    def __post_init__(self) -> None:
        self.directory = self.directory.resolve()
        path = os.pathsep.join((str(self.directory / "bin"), _path()))
        self.environment = os.environ | {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": path}

    def up(self) -> None:
        """Start the daemons and wait until both nodes take jobs.

        Raises:
            SlurmError: a program is missing, the path is too long, a cluster runs there, or a daemon did not come up.
        """
        if absent := missing():
            raise SlurmError(f"not installed: {', '.join(absent)}; on Debian: apt install slurm-wlm munge")
        if len(str(self.directory / "munge/socket")) > LONGEST_SOCKET:
            raise SlurmError(f"{self.directory}: its path is too long for a socket; take a shorter --directory")
        if any(self._pids().values()):
            raise SlurmError(f"{self.directory}: a cluster runs there already; first: down")
        for name in ("bin", "munge", "controller", *NODES):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "munge").chmod(0o711)
        (self.directory / "jobs.log").unlink(missing_ok=True)
        self._configure()
        self._wrap_srun()
        self._munge()
        self._start("slurmctld", "-c")
        for node in NODES:
            self.start_node(node)
        self._wait(lambda: self.states() == dict.fromkeys(NODES, "IDLE"), "the nodes are not idle")

    def _configure(self) -> None:
        with contextlib.ExitStack() as stack:  # all at once, so that no port is given out twice
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + len(NODES))]
            port, *ports = [one.getsockname()[1] for one in sockets]
        host = socket.gethostname()
        has = f"CPUs={self.cpus} RealMemory={self.memory_mb} Gres=gpu:{self.gpu_model}:{self.gpus} State=UNKNOWN"
        nodes = [
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={p} {has}"
            for n, p in zip(NODES, ports, strict=True)
        ]
        values = {"host": host, "port": port, "user": getpass.getuser(), "directory": self.directory}
        (self.directory / "slurm.conf").write_text(CONFIGURATION.format(**values, nodes="\n".join(nodes)))
        for index in range(self.gpus):  # Slurm counts only GPUs that are files
            (self.directory / f"gpu{index}").touch()
        file = self.directory / f"gpu[0-{self.gpus - 1}]"
        gres = "".join(f"NodeName={n} Name=gpu Type={self.gpu_model} File={file}\n" for n in NODES) if self.gpus else ""
        (self.directory / "gres.conf").write_text("AutoDetect=off\n" + gres)

    def _wrap_srun(self) -> None:
        """Make a srun that knows this cluster: Snakemake's job steps drop SLURM_CONF from the environment."""
        wrapper = self.directory / "bin/srun"
        wrapper.unlink(missing_ok=True)  # so that which finds the real one
        conf = shlex.quote(self.environment["SLURM_CONF"])
        wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {shutil.which("srun", path=_path())} "$@"\n')
        wrapper.chmod(0o755)

    def _munge(self) -> None:
        """Start munged with a key of its own; --force: the directory may lie in a world-writable one such as /tmp."""
        directory = self.directory / "munge"
        key = directory / "key"
        key.unlink(missing_ok=True)
        key.touch(mode=0o400)
        key.chmod(0o600)
        key.write_bytes(secrets.token_bytes(128))
        places = {"key-file": key, "socket": directory / "socket", "pid-file": self.directory / "munged.pid"}
        places |= {"log-file": self.directory / "munged.log", "seed-file": directory / "seed"}
        self._start("munged", "--force", *(f"--{option}={place}" for option, place in places.items()))
        self._wait((directory / "socket").exists, "munged has no socket")

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node; one that was killed takes jobs again."""
        self._start("slurmd", "-c", "-N", node)

    def kill_node(self, node: str) -> list[int]:
        """Kill a node as a power cut would: slurmd, job steps and all their processes; and tell Slurm that it is down.

        Returns:
            the processes that were killed.
        """
        killed = [pid for pid in (self._pids().get(node),) if pid] + self._steps(node)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.command("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")
        return killed

    def job_processes(self, node: str) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield process and environment of what runs in a node's jobs: the environment names cluster and node."""
        wanted = {"SLURMD_NODENAME": node, "SLURM_CONF": self.environment["SLURM_CONF"]}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                text = (entry / "environ").read_bytes().decode(errors="replace")
                environment = dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
                if wanted.items() <= environment.items():
                    yield int(entry.name), environment

    def _steps(self, node: str) -> list[int]:
        """Return the processes of a node's jobs, and the daemons of their steps, which hide their environment."""
        inside = [pid for pid, _ in self.job_processes(node)]
        daemons = set()
        for pid in inside:
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                    daemons.add(parent)
        return [*daemons, *inside]

    def states(self) -> dict[str, str]:
        """Return node -> its state as sinfo has it, e.g. IDLE."""
        found = self.command("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).split()
        return {node: state.upper() for node, state in zip(found[::2], found[1::2], strict=True)}

    def jobs(self) -> list[dict[str, str]]:
        """Return the ended jobs of jobs.log, a dictionary for each: JobId, JobState, NodeList, StartTime and so on.

        A job that was requeued has a line for each time that it ran.
        """
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
            raise SlurmError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def down(self) -> None:
        """End jobs and daemons; logs stay."""
        if (self.directory / "munge/socket").exists():
            self.command("scancel", "--user", getpass.getuser(), check=False)
            with contextlib.suppress(SlurmError):
                self._wait(lambda: not self.command("squeue", "--noheader", check=False), "jobs are left", 20)
        for node in NODES:
            for pid in self._steps(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in filter(None, self._pids().values()):
            os.kill(pid, signal.SIGTERM)
        self._wait(lambda: not any(self._pids().values()), "daemons are left")

    def _pids(self) -> dict[str, int]:
        """Return daemon or node -> its process, 0 if it does not run."""
        found = {}
        for name, program in {"slurmctld": "slurmctld", **dict.fromkeys(NODES, "slurmd"), "munged": "munged"}.items():
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.directory / f"{name}.pid").read_text())
                what, state = Path(f"/proc/{pid}/stat").read_text().split()[1:3]
                found[name] = pid if what == f"({program})" and state != "Z" else 0
        return found

    def _start(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SlurmError(f"{command[0]} did not start: {done.stderr.strip()}; see {self.directory}/*.log")

    def _wait(self, condition: Callable[[], object], lacks: str, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise SlurmError(f"{lacks} after {seconds:g} s; see {self.directory}/*.log")
            time.sleep(0.5)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("up", "down", "status", "kill-node", "start-node"))
    parser.add_argument("node", nargs="?", choices=NODES)
    parser.add_argument("--directory", type=Path, required=True, help="scratch; on a disk of this machine")
    for name in ("cpus", "memory_mb", "gpus"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=getattr(Cluster, name), help="of each node"
        )
    parser.add_argument("--gpu-model", default=Cluster.gpu_model)
    given = parser.parse_args()
    if given.action.endswith("-node") and not given.node:
        parser.error(f"{given.action}: which node, {' or '.join(NODES)}?")
    cluster = Cluster(given.directory, given.cpus, given.memory_mb, given.gpus, given.gpu_model)
    try:
        if given.action == "up":
            cluster.up()
            print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']} PATH={cluster.directory}/bin:$PATH")
        elif given.action == "down":
            cluster.down()
        elif given.action == "kill-node":
            print(f"killed {len(cluster.kill_node(given.node))} processes of node {given.node}")
        elif given.action == "start-node":
            cluster.start_node(given.node)
        else:
            print(cluster.command("sinfo") + cluster.command("squeue"), end="")
    except SlurmError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
