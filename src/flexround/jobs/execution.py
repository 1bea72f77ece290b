"""Do a job's work in this process: log, threads, the user's modules, errors meant for the user."""

import argparse
import contextlib
import importlib
import json
import logging
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flexround.errors import FlexRoundError
from flexround.jobs import codefile, command
from flexround.machine import hardware, memory

MODULES = "FLEXROUND_MODULES"  # environment variable: directories of the user's own modules
BUG, USER_ERROR, INTERRUPTED = 1, 2, 130

log = logging.getLogger(__name__)


def run(program: str, stage: str, arguments: argparse.Namespace) -> int:
    """Import the module ``stage``, call its ``run(arguments)`` and return the exit code.

    A FlexRoundError is one line without a traceback. The first line of the log is the command that does it again.
    """
    format = "%(asctime)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=format, datefmt="%H:%M:%S", force=True)
    modules = os.environ.get(MODULES, "")
    again = f"{MODULES}={shlex.quote(modules)} " if modules else ""
    log.info("%spython -m %s %s", again, program, shlex.join(sys.argv[1:]))
    try:
        # Last, so that a user's file never takes the place of a module that others import.
        sys.path += [os.path.abspath(directory) for directory in modules.split(os.pathsep) if directory]
        memory.keep_freed_memory()
        with hardware.enough(stage.rpartition(".")[2], "a larger mem_mb (resources, needs) where it limits the job"):
            code = codefile.Code(arguments.job)
            module = _import(stage, arguments.threads, code.modules)
            code.check(imported=True)
            module.run(arguments)
            code.check()
    except FlexRoundError as error:
        log.error("error: %s", error)
        _tell_agent(error)
        return USER_ERROR
    except SystemExit as end:
        if not isinstance(end.code, str):
            return end.code or 0
        log.error(end.code)
        return BUG
    except BaseException as error:
        traceback.print_exc()
        _tell_agent(error)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else BUG
    return 0


def _tell_agent(error: BaseException) -> None:
    """Have the agent that started this rank of a job say why it ended; ``jobs/ranks.py`` reads it."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        kind = "" if isinstance(error, FlexRoundError) else f"{type(error).__name__}: "
        told = {"message": f"{kind}{error}", "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(path).write_text(json.dumps({"message": told}))


def _import(stage: str, threads: int, others: Iterable[str] = ()) -> Any:
    """Import a stage and hold it to ``threads``; two jobs that spin on the same cores are ten times slower than one.

    A library reads the environment when it is loaded; one that the worker has loaded before is told. No edit reaches
    ``others`` any more, modules that the job imports later.
    """
    loaded = "numpy" in sys.modules
    os.environ.update(dict.fromkeys(command.POOLS, str(threads)))
    module = importlib.import_module(stage)
    for name in others:
        with contextlib.suppress(Exception):  # the job says it where it needs the module
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if loaded and threads > 1:
        import threadpoolctl  # only here: by hand it is not needed

        threadpoolctl.threadpool_limits(threads)
    return module
