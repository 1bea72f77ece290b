"""Pass or stop a full-precision network: nothing is quantized before it is what it should be.

The rule depends on the weights, the data and the bounds, and on purpose on no code: an edit of the evaluation must not
throw away networks that took GPU days.
"""

import argparse
import logging

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.jobs.runs import GateJob
from flexround.machine import provenance
from flexround.machine.devices import lease
from flexround.stages.evaluate import measured

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage.

    Raises:
        InputError: the network is outside of its bounds, or not the one of this place.
    """
    job = GateJob.read(arguments.job)
    made_of = provenance.inputs(job.weights, verify=False) | provenance.inputs(job.data, verify=False)
    with lease(arguments.gpus, arguments.jobs_per_gpu) as device:
        values = measured(job, job.weights, device, quantized=False).metrics
    gate, value = job.gate, values.get(job.gate.metric)
    if value is None:
        raise InputError(f"gate: task {job.names[0]} gives {', '.join(values)}, no {gate.metric}; name one in the gate")
    if not gate.min <= value <= gate.max:
        raise InputError(
            f"{job.weights}: full-precision {gate.metric} is {value}, expected {gate.min} to {gate.max}; nothing is "
            "quantized before this holds: check the checkpoint's source and the preprocessing of the data"
        )
    # Without the bounds: where these alone change, the file stays the same, and with it all that was made behind it.
    facts = {"place": str(job.out), "names": job.names, "inputs": made_of, "metrics": values}
    artifacts.write_formatted(job.out, facts)
    log.info("%s: %s = %.2f passes", "/".join(job.names), gate.metric, value)
