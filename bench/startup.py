"""Seconds from the start of a job's command to the first line of its stage's work: wall, and CPU of client and job.

With the warm worker of a Snakemake run, and in a process of its own. Everything is imported that an evaluation and a
reconstruction import, for images and for texts, and compared with a code file as in every job.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flexround.jobs import codefile, server

REPEATS = 7
KINDS = {
    "images": "flexround.mini.tasks.digits, flexround.mini.models, flexround.models.resnet",
    "texts": "flexround.tasks.glue.task, flexround.tasks.commonsense.task, flexround.models.transformer",
}
STAGE = """
import json, os, time
import flexround.stages.evaluate, flexround.stages.reconstruct, {modules}
def run(arguments):
    print(json.dumps([time.time() - float(os.environ["BEGUN"]), time.process_time()]))
"""
JOB = """
from flexround.jobs import command
parser = command.described("a probe")
if __name__ == "__main__":
    command.main("probe_stage_{kind}", parser())
"""


def measure(kind: str, environment: dict[str, str]) -> tuple[float, float]:
    """Return wall and CPU seconds of the fastest of several starts."""
    found = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = environment | {"BEGUN": repr(time.time())}
        command = [sys.executable, "-m", f"probe_job_{kind}", f"{kind}.json"]
        done = subprocess.run(command, cwd=begun["PLACE"], env=begun, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        client = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        wall, cpu = json.loads(done.stdout)
        found.append((wall, client if environment["FLEXROUND_WORKERS"] == "0" else client + cpu))
    return min(found)


def main() -> None:
    """Print a line for each kind of job, warm and alone."""
    with tempfile.TemporaryDirectory() as place:
        for kind, modules in KINDS.items():
            Path(place, f"probe_stage_{kind}.py").write_text(STAGE.format(modules=modules))
            Path(place, f"probe_job_{kind}.py").write_text(JOB.format(kind=kind))
            starts = [f"flexround.stages.{stage}:run" for stage in ("evaluate", "reconstruct")] + modules.split(", ")
            record = Path(place, kind, "sha256")
            record.parent.mkdir()
            for path, text in zip(
                (record, record.with_name(codefile.SOURCES)), codefile.contents(*starts), strict=True
            ):
                path.write_text(text)
            Path(place, f"{kind}.json").write_text(json.dumps({"code": str(record)}))
        os.environ["PLACE"] = place
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))
        server.start()
        time.sleep(30)  # all is imported
        for kind in KINDS:
            for name, environment in (("warm", {}), ("alone", {"FLEXROUND_WORKERS": "0"})):
                wall, cpu = measure(kind, os.environ | environment)
                print(f"{kind}, {name}: {wall:.2f} s, {cpu:.2f} CPU s")


if __name__ == "__main__":
    main()
