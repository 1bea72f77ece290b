"""Prepare a task's data: check the raw files, write what the later stages read. Uses no network."""

import argparse
import logging
from pathlib import Path

from flexround.settings.load import load_params
from flexround.stages import cli
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    arguments.add_argument("--task", required=True, help="task of the scale, e.g. imagenet")
    arguments.add_argument("--sources", type=Path, default=Path("sources"), help="directory of the raw data")
    arguments.add_argument("--out", type=Path, required=True, help="directory of the prepared data")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    params = load_params(arguments.scale, every_run=False)
    protocol.named(params.scale, arguments.task).prepare(arguments.out, arguments.sources)
    log.info("%s/%s: data in %s", params.scale.name, arguments.task, arguments.out)


if __name__ == "__main__":
    cli.main(run, parser())
