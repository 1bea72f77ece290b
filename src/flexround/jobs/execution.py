"""Do a job's work in this process: log, threads, the user's modules, errors meant for the user."""

import argparse
import json
import logging
import os
import shlex
import sys
import traceback

from flexround import imports
from flexround.errors import USER_ERROR, FlexRoundError
from flexround.jobs.jobfile import Code
from flexround.machine import hardware, memory, threads
from flexround.settings.layout import MODULES

BUG, INTERRUPTED = 1, 130

log = logging.getLogger(__name__)


def run(target: str, arguments: argparse.Namespace) -> int:
    """Call the stage ``target``, ``package.module:name``, and return the exit code.

    A FlexRoundError is logged as one line, without a traceback. The log's first line is the command to repeat the job.
    """
    format = "%(asctime)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=format, datefmt="%H:%M:%S", force=True)
    modules = os.environ.get(MODULES, "")
    again = f"{MODULES}={shlex.quote(modules)} " if modules else ""
    log.info("%spython -m flexround.jobs %s", again, shlex.join(sys.argv[1:]))
    try:
        # The user's directories come last, so that their files never shadow modules that other code imports.
        sys.path += [os.path.abspath(directory) for directory in modules.split(os.pathsep) if directory]
        memory.keep_freed_memory()
        with hardware.enough(target.rpartition(":")[2], "a larger mem_mb (resources, needs) where it limits the job"):
            code = json.loads(arguments.job.read_text())["code"]
            arguments.confirm = Code(**code).check if code else lambda: None
            arguments.confirm()
            with threads.held(arguments.threads):
                stage = imports.load(target)
            if "torch" in sys.modules:
                from flexround.machine import precision  # imports torch, which many stages don't need

                with precision.without_denormals():
                    precision.repeated(lambda: stage(arguments))
            else:
                stage(arguments)
            arguments.confirm()
    except FlexRoundError as error:
        log.error("error: %s", error)
        return USER_ERROR
    except BaseException as error:
        traceback.print_exc()
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else BUG
    return 0
