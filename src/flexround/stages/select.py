"""Take the best of several quantized networks by a held-out part of the training data, never by the test set."""

import argparse
import logging

from flexround.io import artifacts
from flexround.jobs.runs import SelectJob
from flexround.machine.devices import lease
from flexround.stages.evaluate import measured

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage; of equally good candidates the first one wins. The task's first metric decides."""
    job = SelectJob.read(arguments.job)
    values: dict[str, float] = {}
    manifests = {recipe: artifacts.read_manifest(source, verify=False) for recipe, source in job.networks.items()}
    for recipe, source in job.networks.items():
        with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
            found = measured(job, source, device, quantized=True, split="heldout")
        metric, values[recipe] = next(iter(found.metrics.items()))
    best = (max if found.higher_is_better[metric] else min)(values, key=lambda name: values[name])
    for name in manifests[best]["files"]:
        artifacts.link(job.networks[best] / name, job.out / name)
    chosen = {"recipe": best, "metric": metric, "heldout": values}
    made_of = {str(job.networks[best]): manifests[best]["files"]}
    facts = {"place": str(job.out), "inputs": made_of, "run": vars(job.run), "selected": chosen}
    artifacts.write_formatted(job.out / "manifest.json", manifests[best] | facts)
    log.info("%s: %s of %s", job.run, best, values)
