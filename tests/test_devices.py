"""One device per job: leases in several processes and threads, and what a killed holder leaves behind."""

import ctypes
import os
import select
import subprocess
import sys
import tempfile
import threading

import pytest
import torch

from flexround import devices
from flexround.devices import lease, lease_one

HOLDER = """
import sys
from pathlib import Path
from flexround import devices
devices.POLL_SECONDS = 0.01
print("started", flush=True)
with devices.lease_one(sys.argv[2].split(","), Path(sys.argv[1])) as index:
    print(index, flush=True)
    sys.stdin.readline()
"""


class Holder:
    """A process that leases a device until it is told to end."""

    def __init__(self, directory, names):
        command = [sys.executable, "-c", HOLDER, str(directory), ",".join(names)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.line() == "started"

    def line(self, seconds=30):
        """Return the next line, or None if there is none in that time."""
        ready = select.select([self.process.stdout], [], [], seconds)[0]
        return self.process.stdout.readline().decode().strip() if ready else None  # unbuffered: select sees it all

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0

    def kill(self):
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def hold(tmp_path):
    holders = []

    def start(names=("0", "1")):
        holders.append(Holder(tmp_path, names))
        return holders[-1]

    yield start
    for holder in holders:
        if holder.process.poll() is None:
            holder.kill()
        holder.process.stdout.close()


def test_processes_get_different_devices_and_wait_for_a_free_one(hold):
    first = hold()
    assert first.line() == "0"
    second = hold()
    assert second.line() == "1"
    third = hold()
    assert third.line(0.3) is None, "both are taken"
    first.end()
    assert third.line() == "0"


def test_a_killed_process_gives_its_device_back(hold):
    first = hold(("0",))
    assert first.line() == "0"
    waiting = hold(("0",))
    assert waiting.line(0.3) is None
    first.kill()
    assert waiting.line() == "0"


def test_the_index_is_that_of_the_name(hold):
    """A job that may use devices 2 and 3 calls the second of them 1, as torch does, but locks it as 3."""
    assert hold(("3",)).line() == "0"
    assert hold(("2", "3")).line() == "0"
    late = hold(("2", "3", "4"))
    assert late.line() == "2"


def test_threads_get_different_devices(tmp_path):
    found, together = [], threading.Barrier(3, timeout=30)

    def work():
        with lease_one(["a", "b", "c"], tmp_path) as index:
            together.wait()
            found.append(index)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [0, 1, 2]


def test_a_lease_ends_with_its_block_also_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(devices.time, "sleep", lambda _: pytest.fail("it was not given back"))

    def fail():
        with lease_one(["0"], tmp_path):
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
    with lease_one(["0"], tmp_path) as index:
        assert index == 0


def test_without_cuda_it_is_the_cpu_and_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with lease() as device:
        assert device == torch.device("cpu")
        assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("visible", "count", "locked"),
    [(None, 1, "0"), (None, 2, "0"), ("0", 1, "0"), ("3,1", 2, "3"), ("GPU-5e1f", 1, "GPU-5e1f")],
)
def test_the_lock_is_named_after_the_physical_device(tmp_path, monkeypatch, visible, count, locked):
    """Jobs that see all devices and jobs that see some must mean the same one by the same name."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with lease() as device:
        assert device == torch.device("cuda", 0)
        assert chosen == [0]
        assert os.listdir(tmp_path) == [f"flexround-gpu-{locked}.lock"]


PAGE_FAULTS = """
import resource, torch
from flexround import memory
torch.set_num_threads(1)
memory.keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    blocks = [torch.ones(2**19) for _ in range(8)]
for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_memory_that_is_freed_and_taken_again_is_not_returned_in_between():
    command = [sys.executable, "-c", PAGE_FAULTS]
    faults = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert faults < 100, "10 x 16 MB taken anew would be 40,000 pages"


RESIDENT = """
import torch
from flexround import memory
memory.keep_freed_memory()
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
blocks = [torch.ones(2**20) for _ in range(50)]
del blocks
kept = resident()
memory.return_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_memory_that_is_kept_can_be_returned():
    command = [sys.executable, "-c", RESIDENT]
    kilobytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert kilobytes > 150 * 1024, "of 200 MB"
