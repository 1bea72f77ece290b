"""Let every stage run into a full disk, each time with other room; then do the same with room enough.

    PYTHONPATH=tests:worlds python bench/full_disk.py --runs 60  # as root on Linux: it mounts a disk in memory

Each must end with one message of the project's own, and nothing half-written may look whole; afterwards all results
have the bits of an undisturbed run.
"""

import argparse
import collections
import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kills
from rehearse_slurm import hashes

from flexround.errors import USER_ERROR, FlexRoundError

PLENTY = 2**31  # bytes
MORE = 1.2  # times what a result takes, since states and temporary files lie there, too
PAGE = os.sysconf("SC_PAGE_SIZE")


class Disk:
    """A disk in memory at ``place``, of which the room can be changed."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> "Disk":
        mount("-t", "tmpfs", "-o", f"size={PLENTY}", "tmpfs", self.place)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", self.place], check=True)

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        found = os.statvfs(self.place)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    @contextlib.contextmanager
    def left(self, room: int) -> Iterator[None]:
        """Leave so many bytes inside."""
        mount("-o", f"remount,size={self.used + room // PAGE * PAGE + PAGE}", self.place)
        yield
        mount("-o", f"remount,size={PLENTY}", self.place)


def mount(*arguments: object) -> None:
    """Mount; only root may."""
    done = subprocess.run(["mount", *map(str, arguments)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"full_disk.py: {done.stderr.strip()}")


def ended(run: Callable[[], object]) -> tuple[int, str]:
    """Run in a fork; return the exit code, 2 for an error of the project's own, and what was printed."""

    def action() -> None:
        try:
            run()
        except FlexRoundError as error:
            os.write(1, str(error).encode())
            os._exit(USER_ERROR)

    code = os.waitstatus_to_exitcode(os.waitpid(kills.forked(action), 0)[1])
    kills.output.seek(0)
    return code, kills.output.read().decode()


def fill(disk: Disk, runs: int, rng: random.Random, wanted: str) -> Iterator[str]:
    """Run stages with too little room so many times; yield the name of each that ended for it."""
    root = disk.place / "work"
    root.mkdir()
    stages = kills.stages(root, wanted)
    expected, done = hashes(root), 0
    for stage in itertools.cycle(stages):
        before = disk.used
        stage.remove()
        needed = before - disk.used
        with disk.left(int(rng.uniform(0, MORE) * needed)):
            code, text = ended(stage.run)
        if code not in (0, USER_ERROR) or "Traceback" in text:
            raise kills.Wrong(f"{stage.name}: exit code {code}: {text[-2000:]}")
        if code and str(disk.place) not in text and "results/" not in text and ".state" not in text:
            raise kills.Wrong(f"{stage.name}: the message names no file: {text[-500:]}")
        kills.check_whole(stage)
        if code:
            done += 1
            yield stage.name
        stage.remove()
        if ended(stage.run)[0]:
            raise kills.Wrong(f"{stage.name}: fails with room: {text[-2000:]}")
        kills.check_equal(root, expected, stage.name)
        if done >= runs:
            return


def main() -> None:
    """Fill, compare, and print how often which stage had too little room."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=60, help="that end because the disk is full")
    arguments.add_argument("--only", default="", help="stages whose name has this in it")
    arguments.add_argument("--seed", type=int, default=0, help="of the random room")
    given = arguments.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, Disk(Path(directory)) as disk:
        try:
            found = fill(disk, given.runs, random.Random(given.seed), given.only)
            done = collections.Counter(kills.shown(found, "full disk"))
        except kills.Wrong as error:
            sys.exit(f"WRONG: {error}")
    print(*(f"{name}: {count}" for name, count in done.items()), sep="\n")
    print(f"{done.total()} full disks, nothing wrong; {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
