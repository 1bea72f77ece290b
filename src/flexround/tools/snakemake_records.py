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
from collections.abc import Iterable, Iterator
from pathlib import Path

from dvc.repo import Repo

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tools import cli, verify

METADATA = Path(".snakemake/metadata")
COPIED = (".csv", ".tex", ".html", ".pdf", ".png")  # of the files beside each other, those that also lie in results/

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
    """Save or restore the records of the results below the working directory, or print which files stages make."""
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
    """Return the files that a stage makes by its command; of ``task@NAME``, all tables and figures that read it."""
    if not stage.startswith("task@"):
        return [word for word in command.split() if word.startswith("results/")]
    task, served = stage.removeprefix("task@"), verify.served(plan)
    readers = sorted({name for place in served if task in Path(place).with_suffix("").parts for name in served[place]})
    return [f"results/{name}.{'pdf' if name.startswith('figure') else 'csv'}" for name in readers]


def save(results: Path, kept: Path) -> None:
    """Copy the records of the outputs that exist.

    Raises:
        InputError: a file is neither an output with a record nor in one.
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
    """Give the records of what was pulled back to Snakemake, and ``results/`` its copies of tables and figures.

    Raises:
        InputError: there are no records.
    """
    if not kept.is_dir():
        raise InputError(f"{kept}: missing; make pull fetches it")
    places = {place for place in pulled if place.is_relative_to(results) and place.exists()}
    for output, record in _records(kept):
        if places & {output, *output.parents}:  # what else lies here was made here, maybe of other settings
            _copy(record, METADATA / record.relative_to(kept))
    METADATA.with_name("incomplete").mkdir(exist_ok=True)  # Snakemake takes records without it for an old format
    _set_times(places, time.time())  # of what was pulled together nothing is newer, and a directory has no checksum
    made_of = {str(output): record for output, record in _records(METADATA)}
    for file in (file for file in results.iterdir() if file.suffix in COPIED):
        copy = results.parent / file.name
        known = made_of.get(str(copy))
        if known and str(file) not in artifacts.read_json(known)["input"]:
            copy.unlink(missing_ok=True)  # another scale's, which Snakemake would take this one for
        else:
            shutil.copyfile(file, copy)


def _set_times(places: Iterable[Path], seconds: float) -> None:
    """Set the times of what exists of files and directories, and of all that lies in them."""
    for path in (path for place in places if place.exists() for path in (place, *place.rglob("*"))):
        os.utime(path, (seconds, seconds))


def _copy(record: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(record, target)


def _records(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Yield output, record: a record's name is its output's path in base64, over several directories if it is long."""
    for record in directory.rglob("*"):
        if record.is_file():
            parts = (part.removeprefix("@") for part in record.relative_to(directory).parts)
            yield Path(base64.urlsafe_b64decode("".join(parts)).decode()), record


if __name__ == "__main__":
    cli.main(run, parser())
