"""Jobs in forks of the worker: as if each had been started by itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forks import until

from flexround.jobs import worker
from flexround.jobs.worker import SOCKET

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the worker is for Linux")

SOURCES = Path(worker.__file__).parents[2]
FILES = {
    "fake/stage.py": """
import json
def run(arguments):
    exec(json.loads(arguments.job.read_text())["do"], {"arguments": arguments})
""",
    "holder.py": """
import os, sys
from flexround.jobs import worker
worker.start(sys.argv[1:])
print(os.environ[worker.SOCKET], flush=True)
sys.stdin.read()
""",
}
WAIT = "import time, os; print(os.getpid(), flush=True); time.sleep(100)"


def prepared(directory):
    """Write the files of a run, and return its environment."""
    (directory / "fake").mkdir()
    for name, text in FILES.items():
        (directory / name).write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != SOCKET}
    return environment | {"PYTHONPATH": f"{SOURCES}{os.pathsep}{directory}"}


def alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def worker_of(address):
    """Return the process that listens at a socket."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"flexround.jobs.worker" in words and address.encode() in words:
                return int(entry.name)
    return None


class Workers:
    """A worker that lives as long as its holder, which stands for Snakemake."""

    def __init__(self, directory, *modules):
        self.directory = directory
        self.environment = prepared(directory)
        command = [sys.executable, "holder.py", *modules]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.holder = subprocess.Popen(command, cwd=directory, env=self.environment | {"OTHER": "1"}, **pipes)
        self.address = self.holder.stdout.readline().strip()
        self.environment[SOCKET] = self.address
        until(Path(self.address).exists, seconds=180)
        self.pid = worker_of(self.address)

    def begin(self, code, *options, **environment):
        """Start a job."""
        job = self.directory / f"{len(list(self.directory.glob('*.json')))}.json"
        job.write_text(json.dumps({"code": None, "do": code}))
        return subprocess.Popen(
            [sys.executable, "-m", "flexround.jobs", "fake.stage", str(job), *options], cwd=self.directory,
            env=self.environment | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    @staticmethod
    def ended(client):
        """Return exit code, standard output, standard error."""
        output, errors = client.communicate(timeout=60)
        return client.returncode, output, errors

    def end(self):
        self.holder.kill()
        self.holder.communicate()
        until(lambda: not alive(self.pid))
        assert not Path(self.address).parent.exists()


@contextlib.contextmanager
def started(directory, *modules):
    """Start a worker that has imported ``modules``."""
    made = Workers(directory, *modules)
    yield made
    made.end()


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """A worker without imports."""
    with started(tmp_path_factory.mktemp("workers")) as made:
        yield made


ALONE = {SOCKET: "0"}


def test_a_job_is_a_fork_with_all_that_its_command_has(workers):
    code = """
import os, sys
print(os.getppid(), sys.argv[1:], os.environ["MINE"], os.getcwd(), sys.stdin.read())
print("to the errors", os.environ.get("OTHER", "alone"), file=sys.stderr)
"""
    other, job = workers.directory / "other", workers.directory / "job.json"
    other.mkdir()
    job.write_text(json.dumps({"code": None, "do": code}))
    client = subprocess.run(
        [sys.executable, "-m", "flexround.jobs", "fake.stage", job, "--threads", "1"], cwd=other, text=True,
        input="given", capture_output=True, env=workers.environment | {"MINE": "two words"}, check=False,
    )  # fmt: skip
    assert client.returncode == 0
    assert client.stdout == f"{workers.pid} ['fake.stage', '{job}', '--threads', '1'] two words {other} given\n"
    first, second = client.stderr.splitlines()
    assert first.endswith(f"python -m flexround.jobs fake.stage {job} --threads 1")
    assert second == "to the errors alone", "a variable of the worker's"
    assert Path(workers.address).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("to", "number", "code", "said"),
    [
        ("client", signal.SIGINT, -2, "KeyboardInterrupt"),
        ("client", signal.SIGTERM, -15, ""),
        ("job", signal.SIGKILL, 137, "killed: out of memory? run fewer "),
    ],
)
def test_a_job_ends_with_its_command_and_a_kill_is_told(workers, to, number, code, said):
    client = workers.begin(WAIT)
    job = int(client.stdout.readline())
    os.kill({"client": client.pid, "job": job}[to], number)
    result, _, errors = workers.ended(client)
    assert result == code
    assert said in errors
    until(lambda: not alive(job))


@pytest.mark.parametrize("environment", [{}, ALONE], ids=["fork", "alone"])
def test_a_job_is_the_same_with_and_without_a_worker(workers, environment):
    """A mistake is one line with exit code 2; time is the job's; a user's modules don't replace others."""
    usage, mine = workers.directory / "usage.json", workers.directory / "mine"
    mine.mkdir(exist_ok=True)
    (mine / "yaml.py").write_text("raise SystemExit('shadowed')")
    (mine / "my_own.py").write_text("VALUE = 3")
    code = """
import time, os, yaml, my_own
from flexround.errors import InputError
while time.process_time() < 0.5: pass
print(my_own.VALUE, os.getpid())
raise InputError("what to do")
"""
    client = workers.begin(code, "--usage", str(usage), FLEXROUND_MODULES=str(mine), **environment)
    result, output, errors = workers.ended(client)
    value, pid = map(int, output.split())
    assert (result, value, pid == client.pid) == (2, 3, environment == ALONE)
    first, last = errors.splitlines()
    assert f"FLEXROUND_MODULES={mine} python -m flexround.jobs fake.stage" in first
    assert last.endswith(" error: what to do")
    found = json.loads(usage.read_text())
    assert found["exit"] == 2
    assert 0.3 < found["cpu_seconds"] < 5
    assert found["max_rss_mb"] > 10


def test_threads_are_those_of_a_fresh_process_bit_for_bit(tmp_path):
    code = """
import hashlib, os, numpy, torch, threadpoolctl
generator = torch.Generator().manual_seed(0)
a, b = (torch.randn(700, 700, generator=generator) for _ in range(2))
pools = sorted({(pool["user_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()})
products = ((a @ b).tanh(), a.numpy() @ b.numpy())
values = [hashlib.sha256(numpy.asarray(value)).hexdigest() for value in products]
print(torch.get_num_threads(), pools, os.environ["OMP_NUM_THREADS"], values)
"""
    with started(tmp_path, "numpy", "torch") as workers:
        runs = (workers.ended(workers.begin(code, "--threads", "2", **alone)) for alone in ({}, ALONE))
        (forked, fresh) = (output for _, output, _ in runs)
    assert forked == fresh
    assert forked.startswith("2 [('blas', 2), ('openmp', 2)]")


def test_all_imports_leave_one_thread_and_jobs_start_fast(tmp_path):
    code = """
import sys, time, torch, transformers, lm_eval
print(time.process_time(), torch.cuda.is_initialized(), *sys.modules)
"""
    with started(tmp_path, *worker.PRELOADED) as workers:
        assert len(os.listdir(f"/proc/{workers.pid}/task")) == 1, "a fork copies one thread"
        result, output, _ = workers.ended(workers.begin(code))
    seconds, initialised, *modules = output.split()
    assert (result, initialised) == (0, "False")
    assert float(seconds) < 1
    assert set(worker.PRELOADED) <= set(modules)
