"""The command line of a job: hand it to the worker server, or do it here. Imports nothing slow.

With the server the job is a fork of a process that has imported all third-party packages. This process passes its
arguments, environment, working directory and standard streams on, then signals, and ends with the job's exit code.
"""

import argparse
import ctypes
import functools
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

SERVER = "FLEXROUND_WORKERS"  # environment variable: path of the server's socket; 0 for no server
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
FAILED = 1
LONGEST = 1 << 20  # bytes of a packet
ANSWER_SECONDS = 60  # the server is at most one import away
PR_SET_PDEATHSIG = 1  # of prctl(2)
KILLED = (
    "out of memory? run fewer jobs at once (--cores, --resources mem_mb=), or give the job a larger mem_mb (resources, "
    "needs) where that limits it; what is finished is kept: run the same command again"
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what every job takes."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("job", type=Path, help="JSON file with everything that the job reads of settings")
    arguments.add_argument("--threads", type=int, default=1, help="CPU threads")
    arguments.add_argument("--gpus", type=int, default=0, help="GPUs that there must be; 0: one if there is one")
    arguments.add_argument("--usage", type=Path, help="where to write seconds, CPU seconds, peak memory and exit code")
    return arguments


def resumable(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a job that keeps unfinished work."""
    arguments = parser(description)
    state = Path(os.environ.get("FLEXROUND_STATE", ".state"))
    arguments.add_argument("--state", type=Path, default=state, help="where unfinished work is kept")
    return arguments


def described(description: str | None) -> Callable[[], argparse.ArgumentParser]:
    """Return the parser of a job that takes nothing else: the server asks a job's module for ``parser()``."""
    return functools.partial(parser, description)


def main(stage: str, arguments: argparse.ArgumentParser) -> NoReturn:
    """Parse the command line and have ``stage``, a module with a function ``run(arguments)``, do the work.

    Ends the process with the job's exit code: 0, 2 after a FlexRoundError, 128 + N after signal N, else 1.
    """
    given = arguments.parse_args()
    spec = sys.modules["__main__"].__spec__
    program = spec.name if spec else ""
    facts = hand_over(program, stage) or _run_here(program, stage, given)
    if given.usage:
        given.usage.parent.mkdir(parents=True, exist_ok=True)
        temporary = given.usage.with_name(f".{given.usage.name}.{os.getpid()}")
        temporary.write_text(json.dumps(facts) + "\n")
        temporary.replace(given.usage)
    sys.exit(facts["exit"])


def usage(used: resource.struct_rusage, seconds: float, code: int) -> dict[str, Any]:
    """Return what ``--usage`` writes: seconds, CPU seconds (user and system), peak memory in MB, exit code."""
    found = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "max_rss_mb": used.ru_maxrss / 1024}
    return {name: round(value, 3) for name, value in found.items()} | {"exit": code}


def _run_here(program: str, stage: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from flexround.jobs import execution  # logging and what else the client can do without

    if "WORLD_SIZE" in os.environ:  # a rank, whose agent may be killed
        end_with_parent(os.getppid())
    start = time.monotonic()
    code = execution.run(program, stage, arguments)
    return usage(resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - start, code)


def hand_over(program: str, stage: str) -> dict[str, Any] | None:
    """Have the server run the job; return its facts as :func:`usage` does, None if nothing of the job was done."""
    address = os.environ.get(SERVER, "0")
    if address == "0" or sys.platform != "linux" or not program or "WORLD_SIZE" in os.environ:  # a rank
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(address)
            socket.send_fds(connection, [json.dumps(_request(program, stage)).encode()], [0, 1, 2])
            answer = json.loads(connection.recv(LONGEST))
        except (OSError, ValueError) as error:
            answer = {"refused": f"{address}: {error}"}
        if "refused" in answer:
            print(f"worker server: {answer['refused']}; the job runs in this process", file=sys.stderr)
            return None
        connection.settimeout(None)
        try:
            _forward_signals(connection)
            answer = json.loads(connection.recv(LONGEST))
        except (OSError, ValueError):
            print("the worker server ended while this job ran; run again: what is finished is kept", file=sys.stderr)
            sys.exit(FAILED)
    if number := answer.pop("signal"):
        hint = f"; its peak was {answer['max_rss_mb']:.0f} MB; {KILLED}" if number == signal.SIGKILL else ""
        print(f"killed by {signal.Signals(number).name}{hint}", file=sys.stderr)
    return answer


def _request(program: str, stage: str) -> dict[str, Any]:
    """Return what makes the job's process the same as this one."""
    mask = os.umask(0o077)
    os.umask(mask)
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "program": program,
        "stage": stage,
        "argv": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "umask": mask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": [(limit, resource.getrlimit(limit)) for limit in limits],
        "place": place(),
    }


def place() -> list[str]:
    """Return what client and server must share: the Python environment and the control group (a cluster's job)."""
    return [sys.prefix, Path("/proc/self/cgroup").read_text()]


def _forward_signals(connection: socket.socket) -> None:
    """Pass SIGINT, SIGTERM and SIGHUP on to the job; the end of the shell above counts as SIGTERM."""

    def forward(number: int, frame: object) -> None:
        connection.send(json.dumps({"signal": number}).encode())

    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, forward)
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Have this process ended, as by SIGTERM, when ``parent``, its parent, ends; at once if it has already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
