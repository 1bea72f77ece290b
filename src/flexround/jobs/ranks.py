"""Run a job as several processes (ranks), one a GPU: ``python -m flexround.jobs.ranks COUNT STAGE JOB.json ...``.

It is torchrun, whose end is told in one message: a rank that fails ends the others, and its reason stands last.
"""

import logging
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from flexround.errors import USER_ERROR
from flexround.jobs.client import FAILED, KILLED


def main(count: str, *arguments: str) -> int:
    """Run ``count`` ranks of the job that ``arguments`` name, which asks for as many GPUs, however many are counted.

    Return the exit code: 2 after a FlexRoundError, as a job alone. Snakemake tells the job no more GPUs than the limit
    of its resource ``gpu``, which may be the default of one.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it tells what is told below
    given = ["--standalone", "--nproc-per-node", count, "--module", "flexround.jobs", *arguments]
    given += ["--gpus", count, "--jobs-per-gpu", "1"]  # the last one counts
    try:
        run.run(run.parse_args(given))
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda item: _effect(item[1]))
        print(f"error: rank {rank} of {count}, process {failure.pid}, {_reason(failure)}", file=sys.stderr)
        return USER_ERROR if failure.exitcode == USER_ERROR else FAILED
    except SignalException as end:
        print(f"ended by {signal.Signals(end.sigval).name}, and all ranks with it", file=sys.stderr)
        return 128 + end.sigval
    return 0


def _effect(failure: ProcessFailure) -> tuple[int, int]:
    """Order failures from cause to effect: who loses its partner fails, too, and the agent ends who is left."""
    if failure.exitcode < 0:
        return (3 if failure.exitcode == -signal.SIGTERM else 0), failure.timestamp
    return (1 if failure.exitcode == USER_ERROR else 2), failure.timestamp


def _reason(failure: ProcessFailure) -> str:
    """Return why a rank ended; a kill has no message of its own."""
    if failure.exitcode < 0:
        hint = KILLED if failure.exitcode == -signal.SIGKILL else "what is finished is kept: run the same command again"
        return f"was killed by {failure.signal_name()}; the others were ended; {hint}"
    told = failure.error_file_data.get("message", {}) if isinstance(failure.error_file_data, dict) else {}
    text = told.get("message", "") if isinstance(told, dict) else str(told)
    return f"ended the job: {text or f'exit code {failure.exitcode}, its traceback is above'}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
