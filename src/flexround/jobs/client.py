"""The client of the worker server: pass a job and the signals that come later on, return what the job has used.

With the server, a job is a fork of a process that has imported all third-party packages. The client passes its
arguments, environment, working directory and standard streams on. Imports nothing slow.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVER = "FLEXROUND_WORKERS"  # environment variable: path of the server's socket; 0 for no server
FAILED = 1
LONGEST = 1 << 20  # bytes of a packet
ANSWER_SECONDS = 60  # the server is at most one import away
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # of prctl(2)
KILLED = (
    "out of memory? run fewer jobs at once (--cores, --resources mem_mb=), or give the job a larger mem_mb (resources, "
    "needs) where that limits it; what is finished is kept: run the same command again"
)


def hand_over() -> dict[str, Any] | None:
    """Have the server run the job; return its facts as :func:`usage` does, None if nothing of the job was done."""
    address = os.environ.get(SERVER, "0")
    if address == "0" or sys.platform != "linux":
        return None
    own = {"argv": sys.argv, "path": sys.path, "environment": dict(os.environ), "directory": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.settimeout(ANSWER_SECONDS)
            with short(Path(address)) as name:
                connection.connect(name)
            offer = json.loads(connection.recv(LONGEST))
            refusal = offer.get("refused") or ("it runs elsewhere" if offer["place"] != place() else None)
            if refusal is None:
                socket.send_fds(connection, [json.dumps(own).encode()], [0, 1, 2])
        except (OSError, ValueError) as error:
            refusal = f"{address}: {error}"
        if refusal is not None:
            print(f"worker server: {refusal}; the job runs in this process", file=sys.stderr)
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


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    """Yield another name of a socket: the system takes at most 107 characters, and ``TMPDIR`` may be long."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def place() -> list[str]:
    """Return what client and server must share: the Python environment and the control group (a cluster's job)."""
    return [sys.prefix, Path("/proc/self/cgroup").read_text()]


def usage(used: resource.struct_rusage, seconds: float, code: int) -> dict[str, Any]:
    """Return what ``--usage`` writes: seconds, CPU seconds (user and system), peak memory in MB, exit code."""
    found = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "max_rss_mb": used.ru_maxrss / 1024}
    return {name: round(value, 3) for name, value in found.items()} | {"exit": code}


def _forward_signals(connection: socket.socket) -> None:
    """Pass SIGINT, SIGTERM and SIGHUP on to the job; the end of the shell above counts as SIGTERM."""
    parent = os.getppid()
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: connection.send(json.dumps({"signal": number}).encode()))
    end_with_parent(parent)


def end_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Have this process get a signal when ``parent``, its parent, ends; at once if it has already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
