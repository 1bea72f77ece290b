"""Take the best of several quantized networks by a held-out part of the training data, never by the test set."""

import argparse
import logging
from pathlib import Path

from flexround import artifacts
from flexround.stages import cli

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = cli.run_parser(__doc__)
    arguments.add_argument("--heldout", type=Path, nargs="+", required=True, help="metrics.json of each candidate")
    arguments.add_argument("--networks", type=Path, nargs="+", required=True, help="their manifest.json, same order")
    arguments.add_argument("--out", type=Path, required=True, help="directory of the chosen network")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage; of equally good candidates the first one wins."""
    _, identity = cli.identify(arguments)
    found = [artifacts.read_json(path) for path in arguments.heldout]
    metric = next(iter(found[0]["metrics"]))
    sign = 1 if found[0]["higher_is_better"][metric] else -1
    values = [content["metrics"][metric] for content in found]
    best = max(range(len(values)), key=lambda index: sign * values[index])
    source = arguments.networks[best].parent
    manifest = artifacts.read_manifest(source)
    artifacts.copy_existing(source, arguments.out, manifest["files"])
    recipes = [content["run"]["recipe"] for content in found]
    chosen = {"recipe": recipes[best], "metric": metric, "heldout": dict(zip(recipes, values, strict=True))}
    artifacts.write_json(arguments.out / "manifest.json", manifest | {"run": vars(identity), "selected": chosen})
    log.info("%s: %s of %s", identity, recipes[best], chosen["heldout"])


if __name__ == "__main__":
    cli.main(run, parser())
