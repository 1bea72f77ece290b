"""One device per job: leases in several processes and threads, and what a killed holder leaves behind."""

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forks import Fork, results
from own_networks import FEW, Pictures, made, pictures

import flexround
from flexround.errors import InputError
from flexround.jobs import execution
from flexround.machine import devices, precision, provenance
from flexround.machine.devices import lease, lease_one


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Return a function that starts a process which sends the index that it leases and holds it until it is told."""
    monkeypatch.setattr(devices, "POLL_SECONDS", 0.01)
    holders = []

    def start(names=("0", "1"), jobs=1):
        def holding(pipe):
            pipe.send("started")
            with lease_one(names, tmp_path, jobs) as index:
                pipe.send(index)
                pipe.recv()

        holders.append(Fork(holding))
        assert holders[-1].received() == "started"
        return holders[-1]

    yield start
    for holder in holders:
        holder.process.kill()


def test_processes_get_different_devices_or_wait_for_one(hold):
    first, second = hold(), hold()
    assert (first.received(), second.received()) == (0, 1)
    third = hold()
    assert third.received(0.3) is None, "both are taken"
    first.pipe.send("end")
    assert third.received() == 0
    fourth = hold()
    assert fourth.received(0.3) is None
    second.process.kill()
    assert fourth.received() == 1


def test_the_index_is_that_of_the_name(hold):
    """A job that may use devices 2 and 3 calls the second of them 1, as torch does, but locks it as 3."""
    assert [hold(names).received() for names in (("3",), ("2", "3"), ("2", "3", "MIG-GPU-5e1f/1/0"))] == [0, 0, 2]


def test_a_lease_ends_with_its_block_also_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(devices.time, "sleep", lambda _: pytest.fail("it was not given back"))

    def fail():
        with lease_one(["0"], tmp_path):
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fail()
    locks = list(tmp_path.glob("*.lock"))
    assert {path.stat().st_mode & 0o777 for path in locks} == {0o666}, "other users lock it, too"


def test_jobs_that_share_devices_spread_over_them(hold):
    assert [hold("ab", 3).received() for _ in range(6)] == [0, 1] * 3


def test_without_cuda_it_is_the_cpu_and_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with lease() as device:
        assert device == torch.device("cpu")
        assert not os.listdir(tmp_path)


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Let torch see two made-up GPUs; their locks lie in ``tmp_path``. Returns the devices that were chosen."""
    chosen = []
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": chosen.append,
        "get_device_properties": lambda index: SimpleNamespace(uuid=f"5e1f-{index}"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(precision, "repeatable", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return chosen


@pytest.mark.parametrize(
    ("visible", "uuids", "names"),
    [
        ("0", ["b"], ["GPU-b"]),  # Slurm numbers the devices of each job from 0
        ("2,3", ["b", "c"], ["GPU-b", "GPU-c"]),
        ("", ["a", "b"], ["GPU-a", "GPU-b"]),
        # a driver may tell the UUID of the GPU that they are slices of
        ("MIG-GPU-a/1/0, MIG-77", ["a", "a"], ["MIG-GPU-a/1/0", "MIG-77"]),
    ],
)
def test_a_device_has_the_same_name_in_all_processes(gpus, monkeypatch, visible, uuids, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    assert devices.identities() == names
    with lease(1) as device:
        assert device.index == gpus[0] == 0


def test_a_job_that_asked_for_a_gpu_without_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="asks for a GPU, torch finds none"), lease(1):
        pass


def repeatable_facts():
    """Return how PyTorch computes by default, how after ``repeatable``, and whether that is recorded of a CPU."""
    os.environ.pop(precision.WORKSPACE, None)
    before = precision.facts()
    precision.repeatable()
    torch.backends.cuda.matmul.allow_tf32  # noqa: B018 - the old switches, which libraries read, can still be read
    torch.cuda.get_device_name = lambda _: "A100"
    return before, provenance.environment("cuda:0")["gpu"], "gpu" in provenance.environment("cpu")


def test_what_makes_a_gpu_repeat_itself_is_set_and_recorded():
    ((before, after, on_cpu),) = results(repeatable_facts)
    assert (before["deterministic"], before["cublas_workspace"], before["tf32"]) == (False, None, True), "of PyTorch"
    assert (after["deterministic"], after["cublas_workspace"], after["tf32"]) == (True, ":4096:8", False)
    assert after["cuda"] == torch.version.cuda
    assert not on_cpu


class Unrepeatable(Pictures):
    """Does what PyTorch does on a GPU in an operation that has no deterministic form."""

    def forward(self, x):
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(f"median CUDA with indices output {precision.UNREPEATABLE}, but you set 'torch.use")
        return super().forward(x)


def learned(kind):
    """Return what a network becomes, the messages, and how a GPU computes from then on: as before."""
    messages = []
    precision.log.warning = lambda text, *arguments: messages.append(text % arguments)
    found = flexround.quantize(made(kind), pictures(), "b-flexround-w4", device="cpu", **FEW).model.state_dict()
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    precision.repeatable()
    return {key: value.tolist() for key, value in found.items()}, messages, strict, precision.facts()["deterministic"]


def test_what_changes_its_network_is_not_done_again():
    attempts = []

    def attempt():
        attempts.append(1)
        raise RuntimeError(f"median CUDA with indices output {precision.UNREPEATABLE}, but you set 'torch.use")

    message = r"inplace: median .*; call torch.use_deterministic_algorithms\(True, warn_only=True\)"
    with pytest.raises(InputError, match=message):
        precision.repeated(attempt, again=False)
    assert len(attempts) == 1
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_work_is_repeated_if_an_operation_is_not_deterministic():
    plain, allowed = results(functools.partial(learned, Pictures), functools.partial(learned, Unrepeatable))
    assert plain == (allowed[0], [], (False, False), True)
    assert allowed[1:] == (
        [
            f"samples: Unrepeatable can't take one of shape (1, 3, 16, 16): median CUDA with indices output "
            f"{precision.UNREPEATABLE}; done again without: last bits may be others each time"
        ],
        (False, False),
        True,
    )


def flags():
    """Return what decides the bits of a GPU, as it stands."""
    cuda, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn
    filled = torch.utils.deterministic.fill_uninitialized_memory
    mode = torch.get_deterministic_debug_mode()
    return mode, filled, cuda, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic


def flags_around_a_call():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
    before = flags()
    with precision.neutral():
        precision.repeatable()
        inside = flags()
    return before, inside, flags()


def test_a_call_leaves_a_gpu_as_the_caller_has_it():
    ((before, inside, after),) = results(flags_around_a_call)
    assert inside == (2, False, False, False, False, True)
    assert after == before == (0, True, True, True, True, False)


def jobs_of_two_attempts():
    """Return the exit codes of jobs whose stage meets such an operation, and how often the stage was begun."""
    begun = []

    def run(arguments):
        begun.append(arguments)
        if not torch.is_deterministic_algorithms_warn_only_enabled() or len(begun) == 3:
            raise RuntimeError(f"grid_sampler_2d_backward_cuda {precision.UNREPEATABLE}, but you set")

    sys.modules["such_a_stage"] = SimpleNamespace(run=run)
    job = Path(tempfile.mkdtemp(), "job.json")
    job.write_text('{"code": null}')
    given = SimpleNamespace(job=job, threads=1)
    return [execution.run("such_a_stage:run", given) for _ in range(2)], len(begun)


def test_a_job_is_repeated_if_an_operation_is_not_deterministic():
    assert results(jobs_of_two_attempts) == [([0, 1], 3)]


MEMORY = """
import resource, torch
from flexround.machine import memory
torch.set_num_threads(1)
memory.keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
def step(count, size):
    blocks = [torch.ones(size) for _ in range(count)]
for _ in range(20):  # aligned blocks of one size find their places only after some rounds
    step(2, 2**24)
before = faults()
for _ in range(10):
    step(2, 2**24)
print(faults() - before)
step(100, 2**19)
kept = resident()
memory.return_freed_memory()
print(kept - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_freed_memory_is_kept_and_returned_when_asked():
    command = [sys.executable, "-c", MEMORY]
    faults, kilobytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(faults) < 100, "10 x 128 MB taken anew would be 330,000 pages"
    assert int(kilobytes) > 150 * 1024, "of 200 MB"
