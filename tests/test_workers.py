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
SNAKEFILE = """
from flexround.jobs import worker
onstart:
    worker.start(["colorsys"])
rule all:
    output: "done"
    shell: "echo $FLEXROUND_WORKERS > address; while [ ! -e $FLEXROUND_WORKERS ]; do sleep 0.1; done;"
           " python -m flexround.jobs fake.stage job.json > pid; touch {output}"
"""
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

    def run(self, code, *options, **environment):
        """Do a job; return exit code, standard output, standard error."""
        return self.ended(self.begin(code, *options, **environment))

    @staticmethod
    def ended(client):
        output, errors = client.communicate(timeout=60)
        return client.returncode, output, errors

    def end(self):
        self.holder.kill()
        self.holder.communicate()
        until(lambda: not alive(self.pid))
        assert not Path(self.address).parent.exists()


@pytest.fixture
def workers(request, tmp_path):
    """A worker; a test may give the modules that it imports."""
    made = Workers(tmp_path, *getattr(request, "param", ()))
    yield made
    made.end()


def test_a_job_is_a_fork_with_all_that_its_command_has(workers):
    code = """
import os, sys
print(os.getppid(), sys.argv[1:], os.environ["MINE"], os.getcwd(), sys.stdin.read())
print("to the errors", os.environ.get("OTHER", "alone"), file=sys.stderr)
raise SystemExit(7)
"""
    other = workers.directory / "other"
    other.mkdir()
    job = workers.directory / "job.json"
    job.write_text(json.dumps({"code": None, "do": code}))
    client = subprocess.run(
        [sys.executable, "-m", "flexround.jobs", "fake.stage", job, "--threads", "1"], cwd=other, text=True,
        input="given", capture_output=True, env=workers.environment | {"MINE": "two words"}, check=False,
    )  # fmt: skip
    assert client.returncode == 7
    assert client.stdout == f"{workers.pid} ['fake.stage', '{job}', '--threads', '1'] two words {other} given\n"
    first, second = client.stderr.splitlines()
    assert first.endswith(f"python -m flexround.jobs fake.stage {job} --threads 1")
    assert second == "to the errors alone", "a variable of the worker's"
    assert Path(workers.address).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("job", "code", "last"),
    [
        ("from flexround.errors import InputError; raise InputError('what to do')", 2, " error: what to do\n"),
        ("1 / 0", 1, "\nZeroDivisionError: division by zero\n"),
    ],
    ids=["mistake", "bug"],
)
def test_a_mistake_is_one_line_and_a_bug_keeps_its_traceback(workers, job, code, last):
    result, output, errors = workers.run(job)
    assert (result, output) == (code, "")
    assert errors.endswith(last)
    assert ("Traceback" in errors) == (code == 1)


@pytest.mark.parametrize(
    ("to", "number", "code", "said"),
    [
        ("client", signal.SIGINT, 130, "KeyboardInterrupt"),
        ("client", signal.SIGTERM, 143, ""),
        ("client", signal.SIGKILL, -9, ""),
        ("job", signal.SIGKILL, 137, "killed: out of memory? run fewer "),
    ],
)
def test_a_signal_reaches_the_job_and_is_its_exit_code(workers, to, number, code, said):
    client = workers.begin(WAIT)
    job = int(client.stdout.readline())
    os.kill({"client": client.pid, "job": job}[to], number)
    result, _, errors = workers.ended(client)
    assert result == code
    assert said in errors
    until(lambda: not alive(job))


@pytest.mark.parametrize("environment", [{SOCKET: "/nowhere/socket"}, {SOCKET: "0"}])
def test_without_a_worker_the_command_does_the_job(workers, environment):
    usage = workers.directory / "usage.json"
    code = "import os, sys; print(os.getpid(), end=''); sys.exit(5)"
    client = workers.begin(code, "--usage", str(usage), **environment)
    result, output, errors = workers.ended(client)
    assert (result, int(output)) == (5, client.pid)
    assert json.loads(usage.read_text())["exit"] == 5
    assert len(errors.splitlines()) == 1


def test_usage_is_the_jobs(workers):
    usage, baseline = (workers.directory / f"{name}.json" for name in ("usage", "baseline"))
    code = "import time; kept = bytearray(b'x' * 10**8); time.sleep(0.3); end = time.process_time() + 0.4\n"
    code += "while time.process_time() < end: pass"
    workers.run("pass", "--usage", str(baseline))
    workers.run(code, "--usage", str(usage))
    before, found = (json.loads(path.read_text()) for path in (baseline, usage))
    assert found["exit"] == 0
    assert 0.4 <= found["cpu_seconds"] < 2
    assert found["seconds"] >= 0.7
    assert 95 < found["max_rss_mb"] - before["max_rss_mb"] < 250


@pytest.mark.parametrize("forked", [True, False])
def test_a_users_modules_never_take_the_place_of_others(workers, forked):
    mine = workers.directory / "mine"
    mine.mkdir()
    for name in ("colorsys", "yaml", "my_own"):
        (mine / f"{name}.py").write_text("raise SystemExit('shadowed')" if name != "my_own" else "VALUE = 3")
    code = "import colorsys, yaml, my_own; print(my_own.VALUE)"
    alone = {} if forked else {SOCKET: "0"}
    result, output, errors = workers.run(code, FLEXROUND_MODULES=str(mine), **alone)
    assert (result, output) == (0, "3\n")
    assert f"FLEXROUND_MODULES={mine} python -m flexround.jobs fake.stage" in errors


@pytest.mark.parametrize("workers", [["numpy", "torch"]], indirect=True, ids=["these"])
def test_threads_are_those_of_a_fresh_process_bit_for_bit(workers):
    code = """
import hashlib, os, numpy, torch, threadpoolctl
generator = torch.Generator().manual_seed(0)
a, b = (torch.randn(700, 700, generator=generator) for _ in range(2))
a.requires_grad_()
loss = torch.softmax(a @ b, 1).square().sum()
loss.backward()
pools = sorted({(pool["user_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()})
found = [loss.detach(), a.grad, a.detach().numpy() @ b.numpy()]
values = [hashlib.sha256(numpy.asarray(value)).hexdigest() for value in found]
print((torch.full((10**6,), 1e-39) * 1).count_nonzero().item())  # denormal numbers, with which a CPU is 15 times slower
print(torch.get_num_threads(), pools, os.environ["OMP_NUM_THREADS"], values)
"""
    forked, fresh = (workers.run(code, "--threads", "2", **alone) for alone in ({}, {SOCKET: "0"}))
    (denormal, found), (_, expected) = (output.splitlines() for _, output, _ in (forked, fresh))
    assert (found, denormal) == (expected, "0"), "where torch was imported before the stage is called, as by ours"
    assert found.startswith("2 [('blas', 2), ('openmp', 2)]")


def test_snakemake_starts_it_and_ctrl_c_ends_it_and_its_jobs(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    environment = prepared(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps({"code": None, "do": WAIT}))
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    null = subprocess.DEVNULL
    snakemake = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=null, stderr=null, start_new_session=True
    )
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text().strip(), seconds=60)
    processes = [int(pid.read_text()), worker_of((tmp_path / "address").read_text().strip())]
    assert all(map(alive, processes))
    os.killpg(snakemake.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to the whole group
    snakemake.wait(60)
    until(lambda: not any(map(alive, processes)), seconds=60)


@pytest.mark.parametrize("workers", [worker.PRELOADED], indirect=True, ids=["these"])
def test_all_imports_leave_one_thread_and_jobs_start_fast(workers):
    code = """
import sys, time, torch, transformers, lm_eval
print(time.process_time(), torch.cuda.is_initialized(), *sys.modules)
"""
    assert len(os.listdir(f"/proc/{workers.pid}/task")) == 1, "a fork copies one thread"
    result, output, _ = workers.run(code)
    seconds, initialised, *modules = output.split()
    assert (result, initialised) == (0, "False")
    assert float(seconds) < 1
    assert set(worker.PRELOADED) <= set(modules)
