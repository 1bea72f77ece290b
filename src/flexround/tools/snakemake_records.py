"""Keep Snakemake's records of how results were made with the results, and put them back after a pull.

A record holds the parameters, the command and the sha256 of each input of an output. With the records, Snakemake knows
what pulled results were made from, whatever the times of the files: it has nothing to do, and it still reruns what has
changed since they were published. ``snakemake --touch`` would declare results of older code to be those of this code.
"""

import argparse
import base64
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from flexround.errors import InputError
from flexround.settings.load import load_params
from flexround.tools import cli

METADATA = Path(".snakemake/metadata")
COPIED = (".csv", ".tex", ".html", ".pdf", ".png")  # of the files beside each other, those that also lie in results/

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument("action", choices=["save", "restore"], help="to results/SCALE/records, or from there")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Save or restore the records of the results below the working directory."""
    results = Path("results") / load_params(arguments.scale).scale.name
    action = save if arguments.action == "save" else restore
    action(results, results / "records")


def save(results: Path, kept: Path) -> None:
    """Copy the records of the outputs that exist.

    Raises:
        InputError: a file is neither an output with a record nor in one.
    """
    records = {output: record for output, record in _records() if output.is_relative_to(results) and output.exists()}
    files = sorted(path for path in results.rglob("*") if path.is_file() and not path.is_relative_to(kept))
    if unknown := [file for file in files if not records.keys() & {file, *file.parents}]:
        raise InputError(
            f"{unknown[0]} and {len(unknown) - 1} more: Snakemake has no record of making them; "
            "delete them or make them again"
        )
    shutil.rmtree(kept, ignore_errors=True)
    for record in records.values():
        target = kept / record.relative_to(METADATA)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(record, target)
    log.info("%s: %d records", kept, len(records))


def restore(results: Path, kept: Path) -> None:
    """Give the records back to Snakemake, and ``results/`` its copies of the scale's tables and figures.

    Raises:
        InputError: there are no records.
    """
    if not kept.is_dir():
        raise InputError(f"{kept}: missing; make pull fetches it")
    shutil.copytree(kept, METADATA, dirs_exist_ok=True)
    METADATA.with_name("incomplete").mkdir(exist_ok=True)  # Snakemake takes records without it for an old format
    now = time.time()  # of what was pulled together nothing is newer, and a directory has no checksum
    for path in (results, *results.rglob("*")):
        os.utime(path, (now, now))
    for file in (file for file in results.iterdir() if file.suffix in COPIED):
        shutil.copyfile(file, results.parent / file.name)


def _records() -> Iterator[tuple[Path, Path]]:
    """Yield output, record: a record's name is its output's path in base64, over several directories if it is long."""
    for record in METADATA.rglob("*"):
        if record.is_file():
            parts = (part.removeprefix("@") for part in record.relative_to(METADATA).parts)
            yield Path(base64.urlsafe_b64decode("".join(parts)).decode()), record


if __name__ == "__main__":
    cli.main(run, parser())
