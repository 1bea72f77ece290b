"""One device per job: leases in several processes and threads, and what a killed holder leaves behind."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forks import Fork, results

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


def test_the_index_is_that_of_the_name_and_jobs_spread(hold):
    """A job that may use devices 2 and 3 calls the second of them 1, as torch does, but locks it as 3."""
    assert [hold(names).received() for names in (("3",), ("2", "3"), ("2", "3", "MIG-GPU-5e1f/1/0"))] == [0, 0, 2]
    assert [hold("ab", 2).received() for _ in range(4)] == [0, 1] * 2


def test_a_lease_ends_with_its_block_also_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(devices.time, "sleep", lambda _: pytest.fail("it was not given back"))
    for _ in range(2):
        with pytest.raises(KeyError), lease_one(["0"], tmp_path):
            raise KeyError
    locks = list(tmp_path.glob("*.lock"))
    assert {path.stat().st_mode & 0o777 for path in locks} == {0o666}, "other users lock it, too"


def test_without_cuda_it_is_the_cpu_unless_a_gpu_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with lease() as device:
        assert device == torch.device("cpu")
    with pytest.raises(InputError, match="asks for a GPU, torch finds none"), lease(1):
        pass


@pytest.mark.parametrize(
    ("visible", "uuids", "names"),
    [
        ("2,3", ["b", "c"], ["GPU-b", "GPU-c"]),  # Slurm numbers the devices of each job from 0
        ("", ["a", "b"], ["GPU-a", "GPU-b"]),
        # a driver may tell the UUID of the GPU that they are slices of
        ("MIG-GPU-a/1/0, MIG-77", ["a", "a"], ["MIG-GPU-a/1/0", "MIG-77"]),
    ],
)
def test_a_device_has_the_same_name_in_all_processes(monkeypatch, visible, uuids, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    assert devices.identities() == names


def test_what_changes_its_network_is_not_done_again():
    def attempt():
        raise RuntimeError(f"median CUDA with indices output {precision.UNREPEATABLE}, but you set 'torch.use")

    with pytest.raises(InputError, match=r"inplace: median .*; call torch.use_deterministic_algorithms"):
        precision.repeated(attempt, again=False)
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def flags():
    """Return what decides the bits of a GPU, as it stands."""
    cuda, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn
    filled = torch.utils.deterministic.fill_uninitialized_memory
    mode = torch.get_deterministic_debug_mode()
    return mode, filled, cuda, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic


def flags_around_a_call():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.cuda.get_device_name = lambda _: "A100"
    before = flags()
    with precision.neutral():
        precision.repeatable()
        inside, recorded = flags(), provenance.environment("cuda:0")["gpu"]
    return before, inside, recorded, flags()


def test_a_gpu_repeats_itself_in_a_call_and_is_then_as_before():
    ((before, inside, recorded, after),) = results(flags_around_a_call)
    assert inside == (2, False, False, False, False, True)
    assert after == before == (0, True, True, True, True, False)
    assert (recorded["deterministic"], recorded["cublas_workspace"], recorded["tf32"]) == (True, ":4096:8", False)
    assert recorded["cuda"] == torch.version.cuda


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
