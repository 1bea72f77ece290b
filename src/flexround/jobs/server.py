"""The worker server: imports what is slow once, then forks a child for each job.

Protocol, one JSON object a packet: a client sends its request together with its three standard streams and later
``{"signal": N}``; the server answers ``{"accepted": true}`` or ``{"refused": reason}``, and at the end the facts.
Only third-party packages are imported, so a child runs the project's code as it is when the job starts.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import json
import multiprocessing.util
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from flexround.jobs import client
from flexround.machine.threads import POOLS

PRELOADED = (
    *("numpy", "yaml", "pydantic.types", "pydantic.type_adapter", "filelock", "tqdm", "jinja2", "tokenizers"),
    *("torch", "safetensors.torch", "safetensors.numpy", "torch.utils.flop_counter", "torch._dynamo", "torchvision"),
    *("PIL.Image", "scipy.stats", "scipy.ndimage", "sklearn.datasets", "sklearn.metrics"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt_neo", "opt", "gpt2", "llama")),
    *("huggingface_hub", "accelerate", "peft", "pandas", "pyarrow.parquet", "datasets", "sacrebleu.metrics"),
    *("lm_eval.tasks", "lm_eval.models.huggingface", "lm_eval.evaluator"),
    *("matplotlib.backends.backend_agg", "matplotlib.figure"),
)
# No import may start a thread: not those of linear algebra, nor that of Arrow's memory allocator.
NO_THREADS = {**dict.fromkeys(POOLS, "1"), "JE_ARROW_MALLOC_CONF": "background_thread:false"}
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL when Snakemake has ended
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # while a child is not yet on its own


def start(modules: Sequence[str] = PRELOADED, wanted: bool = True) -> None:
    """Start a server that lives as long as this process, and name its socket in the environment for the jobs.

    Does nothing if it is not ``wanted`` (the jobs run on other machines), if the environment names one or says 0, and
    on systems other than Linux.
    """
    if not wanted or client.SERVER in os.environ or sys.platform != "linux":
        return
    directory = Path(tempfile.mkdtemp(prefix="flexround-", dir="/tmp"))  # a socket's path has at most 107 characters
    sources = str(Path(__file__).resolve().parents[2])
    environment = os.environ | NO_THREADS
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH"))))
    self = os.pidfd_open(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(directory / "log", "w") as log:
        listener.bind(str(directory / "socket"))
        listener.listen(128)  # jobs that come before the server reads wait here
        files = (listener.fileno(), self)
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(directory), *map(str, files), *modules],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=files, start_new_session=True,
        )  # fmt: skip
    os.close(self)
    os.environ[client.SERVER] = str(directory / "socket")


def unsafe(devices: str = "/dev/nvidia") -> str | None:
    """Return why this process must not fork: threads besides the first, or a CUDA context; None if it may."""
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        return f"it has {threads} threads, so a fork is not safe"
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{name}").startswith(devices):
                return "it holds a GPU, so a fork is not safe"
    torch = sys.modules.get("torch")
    return "it holds a CUDA context, so a fork is not safe" if torch and torch.cuda.is_initialized() else None


def trusted(credentials: bytes) -> bool:
    """Whether ``SO_PEERCRED`` (process, user, group: three C integers) names this process's own user."""
    return struct.unpack("3i", credentials)[1] == os.getuid()


@dataclasses.dataclass
class Peer:
    """A client: its connection, its job's process (0 before it has one) and when that began."""

    connection: socket.socket
    pid: int = 0
    start: float = 0.0

    def answer(self, **message: Any) -> None:
        """Send an answer; an OSError says that the client is gone."""
        self.connection.send(json.dumps(message).encode())

    def signal(self, number: int) -> None:
        """Send a signal to the job and all that it started."""
        if self.pid:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # it has no group of its own yet
                os.kill(self.pid, number)


class Server:
    """One thread that waits for clients, for the ends of jobs and for the end of Snakemake."""

    def __init__(self, listener: socket.socket, watched: int) -> None:
        """Take a listening socket and the pidfd of the process to end with."""
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, functools.partial(self._accept, listener))
        self.selector.register(watched, selectors.EVENT_READ, sys.exit)
        self.watched = watched
        self.jobs: dict[int, Peer] = {}

    def serve(self, timeout: float | None) -> None:
        """Do what is to be done, wait for it at most ``timeout`` seconds; SystemExit says that Snakemake has ended."""
        for key, _ in self.selector.select(timeout):
            key.data()

    def end(self) -> None:
        """End the jobs, first gently."""
        self.selector.unregister(self.watched)
        for peer in self.jobs.values():
            peer.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.jobs and (left := deadline - time.monotonic()) > 0:
            self.serve(left)
        for peer in self.jobs.values():
            peer.signal(signal.SIGKILL)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if trusted(credentials):
            self.selector.register(connection, selectors.EVENT_READ, functools.partial(self._read, Peer(connection)))
        else:
            connection.close()

    def _read(self, peer: Peer) -> None:
        files: list[int] = []
        try:
            data, files, _, _ = socket.recv_fds(peer.connection, client.LONGEST, 3)
            message = json.loads(data)
            if "signal" in message:
                peer.signal(message["signal"])
            elif not peer.pid:
                self._start(peer, message, files)
        except Exception:  # the client is gone or sends what is no message: its job goes with it, the others stay
            peer.signal(signal.SIGKILL)
            self.selector.unregister(peer.connection)
            peer.connection.close()
        finally:
            for file in files:
                os.close(file)

    def _start(self, peer: Peer, request: dict[str, Any], files: list[int]) -> None:
        """Fork the job. The answer comes first: a client that no longer waits may be doing the job itself."""
        if reason := "it runs elsewhere" if request["place"] != client.place() else unsafe():
            peer.answer(refused=reason)
            return
        peer.answer(accepted=True)
        sys.stdout.flush()
        gc.freeze()  # the child's searches for cycles leave alone, and unshared, what is here
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        server, peer.start, peer.pid = os.getpid(), time.monotonic(), os.fork()
        if peer.pid == 0:
            self._be_job(request, files, server)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        watch = os.pidfd_open(peer.pid)
        self.jobs[watch] = peer
        self.selector.register(watch, selectors.EVENT_READ, functools.partial(self._finish, watch))

    def _finish(self, watch: int) -> None:
        peer = self.jobs.pop(watch)
        peer.signal(signal.SIGKILL)  # what it left behind; it is not reaped yet, so the number is still its own
        _, status, used = os.wait4(peer.pid, 0)
        self.selector.unregister(watch)
        os.close(watch)
        peer.pid = 0
        code = os.waitstatus_to_exitcode(status)
        facts = client.usage(used, time.monotonic() - peer.start, code if code >= 0 else 128 - code)
        with contextlib.suppress(OSError):
            peer.answer(signal=max(0, -code), **facts)

    def _be_job(self, request: dict[str, Any], files: list[int], server: int) -> NoReturn:
        """Become the client's process and do its work; whatever happens, never return."""
        code = 1
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(client.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == server:
                for target, file in enumerate(files):
                    os.dup2(file, target)
                    os.close(file)
                for key in list(self.selector.get_map().values()):
                    key.fileobj.close() if isinstance(key.fileobj, socket.socket) else os.close(key.fd)
                self.selector.close()
                _take_over(request)
                code = _work(request)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def _take_over(request: dict[str, Any]) -> None:
    """Give this process what the client has: signals, directory, environment, modules."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    atexit._clear()  # what the server's imports registered is about the server
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:], sys.argv[:] = request["path"], request["argv"]
    tempfile.tempdir = None  # TMPDIR may differ
    for name in [name for name in sys.modules if name.partition(".")[0] == "flexround"]:
        del sys.modules[name]  # the client's path decides where the project is


def _work(request: dict[str, Any]) -> int:
    """Do the job and what Python does when a program ends; return the exit code."""
    from flexround.jobs import command, execution  # the server itself needs nothing of them

    code = execution.run(command.parsed(request["argv"][1:]))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


def main() -> None:
    """Serve; between two imports the jobs that already wait are started, and import the rest themselves."""
    directory, listener, watched, *modules = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    server = Server(socket.socket(fileno=int(listener)), int(watched))
    try:
        for name in modules:
            server.serve(0)
            try:
                importlib.import_module(name)
            except Exception as error:
                print(f"{name} is not preloaded: {error!r}", file=sys.stderr)
        while True:
            server.serve(None)
    finally:
        server.end()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
