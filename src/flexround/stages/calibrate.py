"""Draw the calibration samples of a seed and store the very samples, so that all methods see the same ones."""

import argparse
import hashlib
import logging
from pathlib import Path

from safetensors.numpy import save_file

from flexround import artifacts
from flexround.settings.load import load_params
from flexround.stages import cli
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--scale", default="mini", help="name of a file in params/scales, or a path to one")
    arguments.add_argument("--task", required=True, help="task of the scale, e.g. imagenet")
    arguments.add_argument("--data", type=Path, required=True, help="directory of the prepared data")
    arguments.add_argument("--samples", type=int, required=True, help="samples to draw")
    arguments.add_argument("--seed", type=int, default=0, help="of the draw; smaller draws are prefixes of larger ones")
    arguments.add_argument("--out", type=Path, required=True, help="directory of samples.safetensors")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    params = load_params(arguments.scale, every_run=False)
    task = protocol.named(params.scale, arguments.task)
    arrays = task.calibration(arguments.data, arguments.samples, arguments.seed)
    artifacts.atomic_write(arguments.out / "samples.safetensors", lambda path: save_file(arrays, path))
    artifacts.write_manifest(
        arguments.out,
        ["samples.safetensors"],
        task=arguments.task,
        seed=arguments.seed,
        samples=arguments.samples,
        indices_sha256=hashlib.sha256(arrays["indices"].astype("<i8").tobytes()).hexdigest(),
    )
    log.info("%s/%s: %d samples of seed %d", params.scale.name, arguments.task, arguments.samples, arguments.seed)


if __name__ == "__main__":
    cli.main(run, parser())
