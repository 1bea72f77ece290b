"""What all stages share: logging, threads, errors meant for the user."""

import argparse
import logging
import os
import sys
from collections.abc import Callable

from flexround import devices
from flexround.errors import FlexRoundError
from flexround.settings.layout import Run
from flexround.settings.load import Params, load_params

USER_ERROR = 2
BATCH = 250  # examples evaluated at once; fixed, because it can change the last bits of a score


def main(run: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Parse the command line and run a stage; a FlexRoundError ends it with exit code 2 and no traceback."""
    arguments = parser.parse_args()
    devices.keep_freed_memory()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        run(arguments)
    except FlexRoundError as error:
        logging.getLogger(__name__).error("error: %s", error)
        sys.exit(USER_ERROR)


def run_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that identify a run, and its threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    parser.add_argument("--task", required=True, help="task of the scale, e.g. imagenet")
    parser.add_argument("--checkpoint", required=True, help="checkpoint of the scale, e.g. resnet18-brecq")
    parser.add_argument("--recipe", required=True, help="recipe in params/recipes.yaml, e.g. b-flexround-w4")
    parser.add_argument("--seed", type=int, default=0, help="trial; calibration draw, batches and drop masks follow it")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    return parser


def identify(arguments: argparse.Namespace) -> tuple[Params, Run]:
    """Return the settings and the run that the arguments of :func:`run_parser` name."""
    params = load_params(arguments.scale, every_run=False)
    return params, Run(params.scale.name, arguments.task, arguments.checkpoint, arguments.recipe, arguments.seed)


def threads(count: int) -> None:
    """Hold torch to ``count`` CPU threads; two jobs that spin on the same cores are ten times slower than one."""
    import torch

    os.environ["OMP_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)
