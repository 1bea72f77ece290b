"""Fetch one pinned source, the only stage that uses the network; what was put there by hand is verified alike.

Writes ``SOURCE.json``, which says what is there, with the commit of what was downloaded from the Hugging Face hub.
"""

import argparse
import logging
from pathlib import Path

from flexround import artifacts, sources
from flexround.errors import SettingsError, suggest
from flexround.settings.load import read_sources
from flexround.stages import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    arguments.add_argument("--source", required=True, help="row of params/sources.yaml, e.g. resnet18-brecq")
    arguments.add_argument("--out", type=Path, default=Path("sources"), help="directory of the raw data")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    errors: list[str] = []
    known = read_sources(errors)
    if errors:
        raise SettingsError("\n".join(errors))
    if arguments.source not in known:
        raise SettingsError(f"source {suggest(arguments.source, known)}")
    source = known[arguments.source]
    found = sources.fetch(arguments.source, source, arguments.out)
    record = {"name": arguments.source, "file": source.file, "revision": source.revision, "sha256": found}
    if commit := sources.commit(arguments.out / source.file):
        record["commit"] = commit
    artifacts.write_json(arguments.out / f"{arguments.source}.json", record)
    log.info("source %s: %s is there and verified", arguments.source, arguments.out / source.file)


if __name__ == "__main__":
    cli.main(run, parser())
