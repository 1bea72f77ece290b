"""The worker: a process that imports third-party packages once and forks a process for each job. Linux only.

A job's command sends its three standard streams, then a line of JSON: arguments, module path, directory, environment.
The fork imports the project's code, does the job and replies with its exit code. It is killed when the command ends.
"""

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from flexround.machine.threads import POOLS

SOCKET = "FLEXROUND_WORKERS"  # environment variable: path of the worker's socket; 0 for no worker
PRELOADED = (
    *("numpy", "yaml", "pydantic.types", "pydantic.type_adapter", "filelock", "tqdm", "jinja2", "tokenizers"),
    *("torch", "safetensors.torch", "safetensors.numpy", "torch.utils.flop_counter", "torch._dynamo", "torchvision"),
    *("PIL.Image", "scipy.stats", "scipy.ndimage", "sklearn.datasets", "sklearn.metrics"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt_neo", "opt", "gpt2", "llama")),
    *("huggingface_hub", "accelerate", "peft", "pandas", "pyarrow.parquet", "datasets", "sacrebleu.metrics"),
    *("lm_eval.tasks", "lm_eval.models.huggingface", "lm_eval.evaluator"),
    *("matplotlib.backends.backend_agg", "matplotlib.figure"),
)
# No import may start a thread, which a fork would lose: neither linear algebra nor Arrow's allocator.
NO_THREADS = {**dict.fromkeys(POOLS, "1"), "JE_ARROW_MALLOC_CONF": "background_thread:false"}
KILLED = """killed: out of memory? run fewer jobs at once (--cores, --resources mem_mb=), or give the job a larger
mem_mb (resources, needs) where that limits it; what is finished is kept: run the same command again"""


def start(modules: list[str] | tuple[str, ...] = PRELOADED) -> None:
    """Start a worker that ends with this process, and export the path of its socket to the jobs."""
    if SOCKET in os.environ or sys.platform != "linux":
        return
    os.environ[SOCKET] = path = f"{tempfile.mkdtemp(prefix='flexround-')}/socket"
    command = [sys.executable, "-P", "-m", __name__, path, *modules]
    environment, null = os.environ | NO_THREADS, subprocess.DEVNULL
    subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null, start_new_session=True)


def hand_over() -> int | None:
    """Have the worker do this process's job; return the exit code, or None without a worker."""
    answer = ""
    with socket.socket(socket.AF_UNIX) as worker:
        try:
            worker.connect(os.environ.get(SOCKET, "0"))
        except OSError:  # a run's first jobs start while the worker is still importing
            return None
        socket.send_fds(worker, [b"\0"], [0, 1, 2])
        worker.sendall(json.dumps([sys.argv, sys.path, os.getcwd(), dict(os.environ)]).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # the job was killed
            answer = worker.makefile().readline()
    if not answer:
        print(KILLED, file=sys.stderr)
    return int(answer) if answer else 128 + signal.SIGKILL


class _Job(socketserver.StreamRequestHandler):
    """A fork of the worker that takes over the client command's environment and does its job."""

    def handle(self) -> None:
        """Do the job; then the fork ends."""
        _, streams, _, _ = socket.recv_fds(self.request, 1, 3)
        sys.argv[:], sys.path[:], directory, environment = json.loads(self.rfile.readline())
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        os.setpgid(0, 0)
        threading.Thread(target=self._end_with_command, daemon=True).start()
        code = importlib.import_module("flexround.jobs.command").do_here()
        sys.stdout.flush()
        self.wfile.write(f"{code}\n".encode())

    def _end_with_command(self) -> None:
        """Kill this fork and its children when the command ends."""
        self.request.recv(1)
        os.killpg(0, signal.SIGKILL)


class _Worker(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """A server that forks a process for each command, as long as the worker's starter lives."""

    max_children = sys.maxsize
    starter = os.getppid()

    def service_actions(self) -> None:
        super().service_actions()
        if os.getppid() != self.starter:
            sys.exit()


def main() -> None:
    """Import the modules, then listen."""
    path, *modules = sys.argv[1:]
    try:
        for name in modules:
            with contextlib.suppress(Exception):  # a job that needs the module reports the error
                importlib.import_module(name)
        gc.freeze()  # a fork's garbage collection doesn't touch present objects, so their memory stays shared
        _Worker(path, _Job).serve_forever(poll_interval=1)
    finally:
        shutil.rmtree(Path(path).parent, ignore_errors=True)


if __name__ == "__main__":
    main()
