"""Make the reference for `make regress`: the tables of a scale, and a tolerance for each cell.

The tables of a scale with an archive of scores (real-evaluated.tar.xz) are made from it, after your runs are added.
"""

import argparse
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexround.errors import InputError
from flexround.io.artifacts import read_json, write_bytes, write_json, write_text
from flexround.regress import tolerances
from flexround.regress.tolerances import Tolerance
from flexround.results import frames
from flexround.results.grid import Entry
from flexround.results.paper_numbers import Key
from flexround.results.published_results import ARCHIVE, MADE, SHARED, SUMMARY, TOLERANCES, published_name
from flexround.results.render import origins
from flexround.results.table_csv import number, summarise
from flexround.settings import layout
from flexround.settings.load import load_params
from flexround.settings.params import Params
from flexround.settings.plan import Plan
from flexround.tools import archive, cli, verify

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this program."""
    arguments = cli.parser(__doc__)
    arguments.add_argument(
        "--elsewhere", type=Path, help="directory of tables made on another kind of CPU; may lack tables and rows"
    )
    arguments.add_argument("--results", type=Path, default=Path("results"), help="directory with SCALE/")
    arguments.add_argument("--out", type=Path, default=Path("results/reference"), help="directory of the reference")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Publish the tables that were computed, or the archived tables together with runs that were computed."""
    params = load_params(arguments.scale)
    for path, problem in verify.untrue(arguments.results / params.scale.name, params):
        raise InputError(f"{path}: {problem}; make the table again")
    path = arguments.out / published_name(params.scale, ARCHIVE)
    if not path.exists():
        publish(params, arguments.results, arguments)
        return
    plan = Plan(params)
    with tempfile.TemporaryDirectory() as name:
        archive.unpack(plan, path, Path(name))
        archive.add(plan, arguments.results, Path(name))
        archive.make(plan, Path(name))
        write_bytes(path, archive.pack(plan, Path(name)))
        publish(params, Path(name, "results"), arguments)


def publish(params: Params, results: Path, arguments: argparse.Namespace) -> None:
    """Copy the tables, their claims and errata, and write tolerances: a cell with a tolerance keeps it."""
    directory = results / params.scale.name
    tables = cli.tables(params, directory)
    entries = [entry for path in tables.values() for entry in _complete(path)]
    limits = arguments.out / published_name(params.scale, TOLERANCES)
    known = frames.load(limits, Tolerance)
    lines = _limits(entries, {_place(line.key): line for line in known}, params)
    if arguments.elsewhere:
        paths = [arguments.elsewhere / path.name for path in tables.values()]
        there = {entry.key: entry.value for path in paths if path.exists() for entry in frames.load(path, Entry)}
        lines = [
            tolerances.widened(line, entry.value, there.get(entry.key, ""))
            for line, entry in zip(lines, entries, strict=True)
        ]
    lines += [line for line in known if line.table not in tables]
    write_text(limits, _csv(sorted(lines, key=lambda line: line.table)))
    for path in tables.values():
        write_bytes(arguments.out / path.name, path.read_bytes())
    for name in SHARED:
        if (directory / name).exists():
            write_bytes(arguments.out / published_name(params.scale, name), (directory / name).read_bytes())
    write_json(arguments.out / published_name(params.scale, SUMMARY), summarise(tables.values()))
    path = arguments.out / published_name(params.scale, MADE)
    old = read_json(path) if path.exists() else {}
    made = {tables[number].stem: _made(number, entries, results.parent, params) for number in tables}
    write_json(path, old | {name: facts for name, facts in made.items() if facts["commit"]})
    log.info("%d cells of tables %s; not there: %s", len(entries), list(tables), sorted(params.tables.keys() - tables))


def _made(number: int, entries: list[Entry], root: Path, params: Params) -> dict[str, Any]:
    """Return the origin of a table: its command, and the commits, dates and machines of its evaluations."""
    own = [entry for entry in entries if entry.table == number]
    runs = {run for entry in own for run in origins.evaluated(entry, root)}
    files = [root / layout.evaluated_dir(run) / "metrics.json" for run in runs]
    environments = [read_json(file)["environment"] for file in files]
    known = [facts for facts in environments if "commit" in facts]
    machines = {of["device"].replace("CPU x86_64", f"{of['processor']} ({of['simd']})") for of in known}
    count = max((int(entry.n_seeds or 0) for entry in own), default=0)
    seeds = f" SEEDS={count}" if params.scale.shows.tables != "table" else ""
    return {
        "command": f"make results/{params.tables[number].name}.csv SCALE={params.scale.name}{seeds}",
        "commit": sorted({facts.get("commit") or "unknown" for facts in environments}) if known else [],
        "date": sorted({facts["date"] for facts in known}),
        "machine": sorted(machines),
    }


def _limits(entries: list[Entry], known: Mapping[Key, Tolerance], params: Params) -> list[Tolerance]:
    """Return the tolerance of each cell: the known tolerance, even if its row moved, or a new cell's tolerance."""
    return [
        known[place]._replace(row=entry.row)
        if (place := _place(entry.key)) in known
        else tolerances.of_new(entry, params.train(entry.task, entry.checkpoint) is not None)
        for entry in entries
    ]


def _place(key: Key) -> Key:
    """Return the identity of a cell without the number of its row."""
    return key._replace(row=0)


def _complete(path: Path) -> list[Entry]:
    """Read a table; refuse a table that can't be a reference."""
    entries = frames.load(path, Entry)
    for entry in entries:
        if not entry.value:
            raise InputError(f"{path}: {entry.key} is missing; a reference holds every cell, make the table first")
        if entry.status == "partial":
            raise InputError(f"{path}: {entry.key} lacks seeds; make the table first, or with fewer seeds")
    return entries


def _csv(lines: list[Tolerance]) -> str:
    """Return the tolerances as CSV."""
    texts = (line._asdict() | {"sd": number(line.sd), "tolerance": number(line.tolerance)} for line in lines)
    return frames.text(frames.made(texts, Tolerance._fields))


if __name__ == "__main__":
    cli.main(run, parser())
