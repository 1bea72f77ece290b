"""Jobs in forks of the worker server: as if each had been started by itself, and none outlives what it belongs to."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import until

from flexround.jobs import server
from flexround.jobs.client import SERVER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server is for Linux")

SOURCES = Path(server.__file__).parents[2]
FILES = {
    "fake/stage.py": """
import json
def run(arguments):
    exec(json.loads(arguments.job.read_text()), {"arguments": arguments})
""",
    "holder.py": """
import os, sys
from flexround.jobs import server
server.start(sys.argv[1:])
print(os.environ["FLEXROUND_WORKERS"], flush=True)
sys.stdin.read()
""",
    "starts_a_thread.py": "import threading as t, time; t.Thread(target=time.sleep, args=(600,), daemon=True).start()",
}
SNAKEFILE = """
from flexround.jobs import server
onstart:
    server.start(["colorsys"])
rule all:
    output: "done"
    shell: "echo $FLEXROUND_WORKERS > address; python -m flexround.jobs fake.stage job.json > pid; touch {output}"
"""
# What every job imports of ours, beside jobs.* and machine.*
LIGHT = ("clone", "errors", "io", "io.artifacts", "jobs", "machine", "settings", "settings.layout", "settings.reach")
WAIT = "import time, os; print(os.getpid(), flush=True); time.sleep(100)"


def prepared(directory):
    """Write the files of a run, and return its environment."""
    (directory / "fake").mkdir()
    for name, text in FILES.items():
        (directory / name).write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != SERVER}
    return environment | {"PYTHONPATH": f"{SOURCES}{os.pathsep}{directory}"}


def alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def server_of(address):
    """Return the process of the server that made a socket."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"flexround.jobs.server" in words and str(Path(address).parent).encode() in words:
                return int(entry.name)
    return None


class Workers:
    """A server that lives as long as its holder, which stands for Snakemake."""

    def __init__(self, directory, *modules):
        self.directory = directory
        self.environment = prepared(directory)
        command = [sys.executable, "holder.py", *modules]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.holder = subprocess.Popen(command, cwd=directory, env=self.environment | {"SERVERS": "1"}, **pipes)
        self.address = self.holder.stdout.readline().strip()
        self.environment["FLEXROUND_WORKERS"] = self.address
        self.pid = until(lambda: server_of(self.address))
        self.log = Path(self.address).parent / "log"

    def begin(self, code, *options, before=(), **environment):
        """Start a job; ``before`` is what its command is part of."""
        job = self.directory / f"{len(list(self.directory.glob('*.json')))}.json"
        job.write_text(json.dumps(code))
        return subprocess.Popen(
            [*before, sys.executable, "-m", "flexround.jobs", "fake.stage", str(job), *options], cwd=self.directory,
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
        shutil.rmtree(Path(self.address).parent, ignore_errors=True)  # of a server that was killed


@pytest.fixture
def workers(request, tmp_path):
    """A server; a test may give the modules that it imports."""
    made = Workers(tmp_path, *getattr(request, "param", ()))
    yield made
    made.end()


def test_the_server_lives_in_tmpdir_however_long_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 200)))
    Path(os.environ["TMPDIR"]).mkdir()
    workers = Workers(tmp_path)
    code, _, errors = workers.run("pass")
    workers.end()
    assert Path(workers.address).is_relative_to(os.environ["TMPDIR"])
    assert code == 0
    assert "the job runs in this process" not in errors


def test_a_job_is_a_fork_with_the_clients_arguments_environment_directory_and_streams(workers):
    code = """
import os, sys
parent = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
print(parent, sys.argv[1:], os.environ["MINE"], os.getcwd(), sys.stdin.read())
print("to the errors", os.environ.get("SERVERS", "alone"), file=sys.stderr)
raise SystemExit(7)
"""
    other = workers.directory / "other"
    other.mkdir()
    job = workers.directory / "job.json"
    job.write_text(json.dumps(code))
    client = subprocess.run(
        [sys.executable, "-m", "flexround.jobs", "fake.stage", job, "--threads", "1"], cwd=other, text=True,
        input="given", capture_output=True, env=workers.environment | {"MINE": "two words"}, check=False,
    )  # fmt: skip
    assert client.returncode == 7
    assert client.stdout == f"{workers.pid} ['fake.stage', '{job}', '--threads', '1'] two words {other} given\n"
    first, second = client.stderr.splitlines()
    assert first.endswith(f"python -m flexround.jobs fake.stage {job} --threads 1")
    assert second == "to the errors alone", "a variable of the server's"
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
        ("client", signal.SIGTERM, 143, "killed by SIGTERM"),
        ("job", signal.SIGKILL, 137, r"(?m)^killed by SIGKILL; its peak was \d+ MB; out of memory\? run fewer .*\n\Z"),
    ],
)
def test_a_signal_reaches_the_job_and_is_its_exit_code(workers, to, number, code, said):
    usage = workers.directory / "usage.json"
    client = workers.begin(WAIT, "--usage", str(usage))
    job = int(client.stdout.readline())
    os.kill({"client": client.pid, "job": job}[to], number)
    result, _, errors = workers.ended(client)
    assert result == json.loads(usage.read_text())["exit"] == code
    assert re.search(said, errors)
    assert not alive(job)


def test_what_a_job_leaves_behind_ends_with_it(workers):
    code = "import subprocess; print(subprocess.Popen(['sleep', '100'], stdout=-3, stderr=-3).pid)"
    _, output, _ = workers.run(code)
    until(lambda: not alive(int(output)))


@pytest.mark.parametrize("victim", ["client", "shell"])
def test_a_killed_client_takes_its_job_with_it(workers, victim):
    client = workers.begin(WAIT, before=("sh", "-c", '"$@"; true', "sh") if victim == "shell" else ())
    job = int(client.stdout.readline())
    client.kill()
    until(lambda: not alive(job))
    client.communicate()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({SERVER: "/nowhere/socket"}, "No such file"),
        ({}, "refused"),  # it has been killed
        ({SERVER: "0"}, ""),
    ],
)
def test_without_a_server_the_client_does_the_job(workers, environment, said):
    if not environment:
        os.kill(workers.pid, signal.SIGKILL)
        until(lambda: not alive(workers.pid))
    usage = workers.directory / "usage.json"
    options = ("--usage", str(usage))
    code = "import os, sys; print(os.getpid(), end=''); sys.exit(5)"
    client = workers.begin(code, *options, **environment)
    result, output, errors = workers.ended(client)
    assert (result, int(output)) == (5, client.pid)
    assert json.loads(usage.read_text())["exit"] == 5
    assert ("runs in this process" in errors) == bool(said)
    assert said in errors
    assert len(errors.splitlines()) <= 2


@pytest.mark.parametrize("victim", ["snakemake", "server"])
def test_the_end_of_snakemake_or_of_the_server_takes_the_jobs_along_and_their_clients_say_so(workers, victim):
    ignores = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "100"], stdout=-3, stderr=-3).pid, flush=True)
"""
    clients = [workers.begin(WAIT), workers.begin(ignores + WAIT)]
    jobs = [int(clients[index].stdout.readline()) for index in (0, 1, 1)]
    os.kill(workers.holder.pid if victim == "snakemake" else workers.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, [*jobs, workers.pid])), seconds=10)
    assert Path(workers.address).parent.exists() == (victim == "server")
    for code, _, errors in map(workers.ended, clients):
        assert code == 1
        assert errors.endswith("worker server ended while this job ran; run again: what is finished is kept\n")


NO_MESSAGES = ("[]", "1", "null", '"signal"', "[" * 9000, "\xff", "{}", '{"signal": "KILL"}', '{"signal": 1e99}')


def test_no_packet_ends_the_server_or_another_job(workers):
    """Neither in the place of a request nor after one, nor a second request."""
    (workers.directory / "short").write_text('"import time; time.sleep(1)"')
    asked = {"argv": ["", "fake.stage", "short"], "path": [str(SOURCES), str(workers.directory), *sys.path]}
    asked = json.dumps(asked | {"environment": dict(os.environ), "directory": str(workers.directory)})
    with contextlib.ExitStack() as stack:
        for packets in (*((text,) for text in NO_MESSAGES), *((asked, text) for text in (*NO_MESSAGES, asked))):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connection.connect(workers.address)
            for packet in packets:
                connection.send(packet.encode("latin-1"))
        for _ in range(2):
            code, output, errors = workers.run("print(1)")
            assert (code, output) == (0, "1\n"), errors
            assert "worker server" not in errors


def test_usage_is_the_childs(workers):
    usage, baseline = (workers.directory / f"{name}.json" for name in ("usage", "baseline"))
    code = "import time; kept = bytearray(b'x' * 10**8); time.sleep(0.3)\nwhile time.process_time() < 0.5: pass"
    workers.run("pass", "--usage", str(baseline))
    workers.run(code, "--usage", str(usage))
    before, found = (json.loads(path.read_text()) for path in (baseline, usage))
    assert found["exit"] == 0
    assert 0.5 <= found["cpu_seconds"] < 2
    assert found["seconds"] >= 0.7
    assert 95 < found["max_rss_mb"] - before["max_rss_mb"] < 250
    assert before["cpu_seconds"] < 0.4


@pytest.mark.parametrize("workers", [["starts_a_thread"]], indirect=True, ids=["these"])
def test_a_server_with_a_second_thread_refuses(workers):
    until(lambda: len(os.listdir(f"/proc/{workers.pid}/task")) == 2)
    code, output, errors = workers.run("import os; print(os.getppid())")
    assert (code, int(output)) == (0, os.getpid())
    assert "it has 2 threads, so a fork is not safe" in errors


def test_a_held_gpu_is_not_safe(tmp_path):
    code = f"""
from flexround.jobs import server
free = open("/dev/null")
kept = open({str(tmp_path / "nvidia0")!r}, "w")
free.close()  # so that the listing's own file comes before
print(server.unsafe("/none"), "holds a GPU" in server.unsafe({str(tmp_path / "nvidia")!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], env=prepared(tmp_path), capture_output=True, check=True)
    assert done.stdout == b"None True\n"


def test_another_user_or_place_is_refused(workers):
    assert server.trusted(struct.pack("3i", 1, os.getuid(), 0))
    assert not server.trusted(struct.pack("3i", 1, os.getuid() + 1, 0))
    # another environment of Python: what the server has imported is not what this job would import
    (workers.directory / "0.json").write_text('"pass"')
    code = "import sys; sys.prefix = '/other'; import runpy; runpy.run_module('flexround.jobs', None, '__main__', True)"
    command = [sys.executable, "-c", code, "fake.stage", str(workers.directory / "0.json")]
    done = subprocess.run(command, env=workers.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "it runs elsewhere; the job runs in this process" in done.stderr


@pytest.mark.parametrize("workers", [["no_such_module", "colorsys"]], indirect=True, ids=["these"])
def test_a_module_that_fails_is_a_line_in_the_log_and_jobs_run(workers):
    until(lambda: "no_such_module is not preloaded" in workers.log.read_text())
    until(lambda: workers.run("import sys; print('colorsys' in sys.modules)")[1] == "True\n")


@pytest.mark.parametrize("forked", [True, False])
def test_a_users_modules_never_take_the_place_of_others(workers, forked):
    mine = workers.directory / "mine"
    mine.mkdir()
    for name in ("colorsys", "yaml", "my_own"):
        (mine / f"{name}.py").write_text("raise SystemExit('shadowed')" if name != "my_own" else "VALUE = 3")
    code = "import colorsys, yaml, my_own; print(my_own.VALUE)"
    alone = {} if forked else {SERVER: "0"}
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
print(torch.get_num_threads(), pools, os.environ["OMP_NUM_THREADS"], values)
"""
    until(lambda: "torch" in workers.run("import sys; print(*sys.modules)")[1].split())
    forked, fresh = (workers.run(code, "--threads", "2", **alone) for alone in ({}, {SERVER: "0"}))
    assert forked[:2] == fresh[:2]
    assert forked[1].startswith("2 [('blas', 2), ('openmp', 2)]")


@pytest.mark.parametrize("workers", [["numpy", "torch"]], indirect=True, ids=["these"])
def test_all_threads_of_a_job_take_denormal_numbers_for_zero(workers):
    """A CPU would compute with them 15 times slower."""
    until(lambda: "torch" in workers.run("import sys; print(*sys.modules)")[1].split())
    code = "import torch; print(torch.get_num_threads(), (torch.full((10**6,), 1e-39) * 1).count_nonzero().item())"
    assert workers.run(code, "--threads", "2")[1] == "2 0\n"


def test_snakemake_starts_it_and_ctrl_c_ends_it_and_its_jobs(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    environment = prepared(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(WAIT))
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    null = subprocess.DEVNULL
    snakemake = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=null, stderr=null, start_new_session=True
    )
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text().strip(), seconds=60)
    processes = [int(pid.read_text()), server_of((tmp_path / "address").read_text().strip())]
    assert all(map(alive, processes))
    os.killpg(snakemake.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to the whole group
    snakemake.wait(60)
    until(lambda: not any(map(alive, processes)), seconds=60)  # a server that still imports looks after each import


@pytest.mark.parametrize("workers", [server.PRELOADED], indirect=True, ids=["these"])
def test_all_that_is_preloaded_leaves_one_thread_and_no_gpu_and_jobs_start_at_once(workers):
    code = """
import sys, time, os, torch, transformers, lm_eval
print(time.time() - float(os.environ["BEGUN"]), torch.cuda.is_initialized(), *sys.modules)
"""
    last = server.PRELOADED[-1]
    until(lambda: last in workers.run("import sys; print(*sys.modules)")[1].split(), seconds=120)
    assert len(os.listdir(f"/proc/{workers.pid}/task")) == 1
    result, output, errors = workers.run(code, BEGUN=str(time.time()))
    seconds, initialised, *modules = output.split()
    assert (result, initialised) == (0, "False")
    assert "fork is not safe" not in errors
    assert float(seconds) < 1
    assert set(server.PRELOADED) <= set(modules), workers.log.read_text()
    ours = [name.removeprefix("flexround.") for name in modules if name.startswith("flexround.")]
    assert not [name for name in ours if not name.startswith(("jobs.", "machine.")) and name not in LIGHT]


@pytest.mark.parametrize(("variable", "wanted"), [(None, False), ("0", True), ("/another/socket", True)])
def test_nothing_is_started_where_it_is_not_wanted(monkeypatch, variable, wanted):
    """On a cluster the jobs run elsewhere; a user says 0; a Snakemake within a Snakemake uses the outer one's."""
    monkeypatch.delenv(SERVER, raising=False)
    if variable is not None:
        monkeypatch.setenv(SERVER, variable)
    monkeypatch.setattr(server.subprocess, "Popen", lambda *_, **__: pytest.fail("a server was started"))
    server.start(wanted=wanted)
    assert os.environ.get(SERVER) == variable
