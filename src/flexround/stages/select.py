"""Take the best of several quantized networks by a held-out part of the training data, never by the test set."""

import argparse
import logging
from pathlib import Path

from flexround import artifacts
from flexround.devices import lease
from flexround.reconstruct import network
from flexround.stages import cli
from flexround.tasks import protocol

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Return the command line of this stage."""
    arguments = cli.run_parser(__doc__)
    arguments.add_argument("--networks", type=Path, nargs="+", required=True, help="manifest.json of each candidate")
    arguments.add_argument("--data", type=Path, required=True, help="directory of the prepared data")
    arguments.add_argument("--out", type=Path, required=True, help="directory of the chosen network")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Run the stage; of equally good candidates the first one wins. The task's first metric decides."""
    cli.threads(arguments.threads)
    params, identity = cli.identify(arguments)
    checkpoint, task = params.checkpoint(identity.checkpoint), protocol.named(params.scale, identity.task)
    values: dict[str, float] = {}
    sources: dict[str, Path] = {}
    with lease() as device:
        for source in (path.parent for path in arguments.networks):
            recipe = artifacts.read_manifest(source)["run"]["recipe"]
            model = network.quantized(checkpoint, task.head, source, ()).to(device)
            found = task.evaluate(model, arguments.data, device, cli.BATCH, source, "heldout")
            metric, values[recipe] = next(iter(found.metrics.items()))
            sources[recipe] = source
    best = (max if found.higher_is_better[metric] else min)(values, key=lambda name: values[name])
    manifest = artifacts.read_manifest(sources[best])
    for name in manifest["files"]:
        artifacts.link(sources[best] / name, arguments.out / name)
    chosen = {"recipe": best, "metric": metric, "heldout": values}
    artifacts.write_json(arguments.out / "manifest.json", manifest | {"run": vars(identity), "selected": chosen})
    log.info("%s: %s of %s", identity, best, values)


if __name__ == "__main__":
    cli.main(run, parser())
