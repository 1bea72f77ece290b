"""Save Snakemake's records of how results were made beside the results, and restore the records after a pull.

A record holds an output's parameters and command and the sha256 of each input. With the records, Snakemake knows the
inputs of pulled results, whatever the times of the files. It reruns only the results whose inputs changed since they
were published. ``snakemake --touch`` would instead declare results of older code to be results of this code.
"""

import argparse
import base64
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dvc.repo import Repo

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools import cli, verify

METADATA = Path(".snakemake/metadata")
COPIED = (".csv", ".tex", ".html", ".pdf", ".png")  # suffixes of files that are also copied to results/

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "action", choices=["save", "restore", "goals"], help="to results/SCALE/records, from there, or none"
    )
    arguments.add_argument(
        "entries", nargs="*", help="stages of dvc.yaml that are pulled or pushed; all if none is given"
    )
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Save or restore the records of results below the working directory, or print the files that stages make."""
    params = load_params(arguments.scale)
    results = Path("results") / params.scale.name
    if arguments.action == "save":
        save(results, results / "records")
        return
    with Repo() as repo:
        if arguments.action == "goals":
            stages, plan = repo.index.targets_view(arguments.entries or None).stages, Plan(params)
            print(*(goal for stage in stages for goal in goals(stage.name, str(stage.cmd), plan)))
            return
        pulled = [Path(str(out)) for out in repo.index.targets_view(arguments.entries or None).outs]
    restore(results, results / "records", pulled)


def goals(stage: str, command: str, plan: Plan) -> list[str]:
    """Return the files that a stage's command makes; for ``task@NAME``, all tables and figures that read the task."""
    if not stage.startswith("task@"):
        return [word for word in command.split() if word.startswith("results/")]
    task, served = stage.removeprefix("task@"), verify.served(plan)
    readers = sorted({name for place in served if task in Path(place).with_suffix("").parts for name in served[place]})
    return [f"results/{name}.{'pdf' if name.startswith('figure') else 'csv'}" for name in readers]


def save(results: Path, kept: Path) -> None:
    """Copy the records of the outputs that exist.

    Raises:
        InputError: a file is neither an output with a record nor inside such an output.
    """
    found = _records(METADATA)
    records = {output: record for output, record in found if output.is_relative_to(results) and output.exists()}
    files = sorted(path for path in results.rglob("*") if path.is_file() and not path.is_relative_to(kept))
    if unknown := [file for file in files if not records.keys() & {file, *file.parents}]:
        raise InputError(
            f"{unknown[0]} and {len(unknown) - 1} more: Snakemake has no record of making them; "
            "delete them or make them again"
        )
    shutil.rmtree(kept, ignore_errors=True)
    for record in records.values():
        _copy(record, kept / record.relative_to(METADATA))
    log.info("%s: %d records", kept, len(records))


def restore(results: Path, kept: Path, pulled: Iterable[Path]) -> None:
    """Restore the records of pulled results for Snakemake, and the copies of tables and figures in ``results/``.

    Raises:
        InputError: no records exist.
    """
    if not kept.is_dir():
        raise InputError(f"{kept}: missing; make pull fetches it")
    places = {place for place in pulled if place.is_relative_to(results) and place.exists()}
    for output, record in _records(kept):
        if places & {output, *output.parents}:  # other outputs were made here, maybe with other settings
            _copy(record, METADATA / record.relative_to(kept))
    METADATA.with_name("incomplete").mkdir(exist_ok=True)  # without it Snakemake assumes an old format
    _set_times(places, time.time())  # equal times for all pulled files: a directory has no checksum
    made_of = {str(output): record for output, record in _records(METADATA)}
    for file in (file for file in results.iterdir() if file.suffix in COPIED):
        copy = results.parent / file.name
        known = made_of.get(str(copy))
        if known and str(file) not in artifacts.read_json(known)["input"]:
            copy.unlink(missing_ok=True)  # another scale's copy, which Snakemake would mistake for this one
        else:
            shutil.copyfile(file, copy)


def _set_times(places: Iterable[Path], seconds: float) -> None:
    """Set the times of all existing files and directories, and of everything inside them."""
    for path in (path for place in places if place.exists() for path in (place, *place.rglob("*"))):
        os.utime(path, (seconds, seconds))


def _copy(record: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(record, target)


def _records(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Yield output, record: a record's name is the output's path in base64, split into directories if it is long."""
    for record in directory.rglob("*"):
        if record.is_file():
            parts = (part.removeprefix("@") for part in record.relative_to(directory).parts)
            yield Path(base64.urlsafe_b64decode("".join(parts)).decode()), record


if __name__ == "__main__":
    cli.main(run, parser())
