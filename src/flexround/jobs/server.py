"""The worker server: imports what is slow once, then forks an attendant for each client, which forks the job.

Protocol, one JSON object a packet: the server says why it refuses, or the attendant says in which place it is. The
client sends its request with its three standard streams, and later ``{"signal": N}``; the attendant answers with the
facts. Only third-party packages are imported, so a job runs the project's code as it is when the job starts. Each
process ends with its parent: the server with Snakemake, an attendant with the server, a job with its attendant.
"""

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.util
import os
import select
import shutil
import signal
import socket
import socketserver
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
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL when the server has ended


def start(modules: Sequence[str] = PRELOADED, wanted: bool = True) -> None:
    """Start a server that lives as long as this process, and name its socket in the environment for the jobs.

    Does nothing if it is not ``wanted`` (the jobs run on other machines), if the environment names one or says 0, and
    on systems other than Linux.
    """
    if not wanted or client.SERVER in os.environ or sys.platform != "linux":
        return
    directory = Path(tempfile.mkdtemp(prefix="flexround-"))
    sources = str(Path(__file__).resolve().parents[2])
    environment = os.environ | NO_THREADS
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH"))))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(directory / "log", "w") as log:
        with client.short(directory / "socket") as name:
            listener.bind(name)
        listener.listen(128)  # jobs that come before the server reads wait here
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(directory), str(listener.fileno()), str(os.getpid()), *modules],
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[listener.fileno()],
            start_new_session=True,
        )  # fmt: skip
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


class Attendant(socketserver.BaseRequestHandler):
    """A process between the server and a job: takes the client's request, forks the job and waits for its end."""

    request: socket.socket
    server: "Server"

    def handle(self) -> None:
        """Serve the client; what is no message ends its job."""
        self.server.socket.close()
        client.end_with_parent(self.server.pid)
        self._answer(place=client.place())
        packet, files, _, _ = socket.recv_fds(self.request, client.LONGEST, 3)
        if not packet:  # the client does the job itself
            return
        asked, start = json.loads(packet), time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, client.FORWARDED)  # until each of the two handles its own
        attendant, job = os.getpid(), os.fork()
        if job == 0:
            self.request.close()
            _be_job(asked, files, attendant)
        os.setpgid(job, job)  # as the job does: whoever comes first
        if self._ended(job):
            _, status, used = os.wait4(job, 0)
            code = os.waitstatus_to_exitcode(status)
            facts = client.usage(used, time.monotonic() - start, code if code >= 0 else 128 - code)
            self._answer(signal=max(0, -code), **facts)

    def _answer(self, **message: Any) -> None:
        self.request.send(json.dumps(message).encode())

    def _ended(self, job: int) -> bool:
        """Pass signals on until the job ends, or end it; return whether the client is still there."""
        watch = os.pidfd_open(job)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, client.FORWARDED)
            while watch not in select.select([self.request.fileno(), watch], [], [])[0]:
                if not (packet := self.request.recv(client.LONGEST)):
                    return False
                os.killpg(job, json.loads(packet)["signal"])
            return True
        except SystemExit:  # the server has ended
            os.killpg(job, signal.SIGTERM)
            select.select([watch], [], [], GRACE_SECONDS)
            raise
        finally:  # also what it left behind; it is not reaped yet, so the number is still its own
            os.killpg(job, signal.SIGKILL)


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks an attendant for each client of this process's own user."""

    timeout = 0  # of handle_request
    max_children = sys.maxsize

    def __init__(self, listener: socket.socket) -> None:
        """Take a listening socket."""
        socketserver.BaseServer.__init__(self, listener.getsockname(), Attendant)
        self.socket, self.pid = listener, os.getpid()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether a client is served; tell it why it is not."""
        if not trusted(request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))):
            return False
        sys.stdout.flush()
        gc.freeze()  # a fork's searches for cycles leave alone, and unshared, what is here
        if reason := unsafe():
            request.send(json.dumps({"refused": reason}).encode())
        return not reason


def _be_job(request: dict[str, Any], files: list[int], attendant: int) -> NoReturn:
    """Become the client's process, do its work and what Python does when a program ends; never return."""
    code = 1
    try:
        os.setpgid(0, 0)
        client.end_with_parent(attendant, signal.SIGKILL)
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        _take_over(request)
        from flexround.jobs import command  # the server itself needs nothing of it

        code = command.run(command.parsed(request["argv"][1:]))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _take_over(request: dict[str, Any]) -> None:
    """Give this process what the client has: signals, directory, environment, modules."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, client.FORWARDED)
    atexit._clear()  # what the server's imports registered is about the server
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:], sys.argv[:] = request["path"], request["argv"]
    tempfile.tempdir = None  # TMPDIR may differ
    for name in [name for name in sys.modules if name.partition(".")[0] == "flexround"]:
        del sys.modules[name]  # the client's path decides where the project is


def main() -> None:
    """Serve; between two imports the jobs that already wait are started, and import the rest themselves."""
    directory, listener, snakemake, *modules = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        client.end_with_parent(int(snakemake))
        server = Server(socket.socket(fileno=int(listener)))
        for name in modules:
            server.handle_request()
            try:
                importlib.import_module(name)
            except Exception as error:
                print(f"{name} is not preloaded: {error!r}", file=sys.stderr)
        server.serve_forever(poll_interval=60)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
