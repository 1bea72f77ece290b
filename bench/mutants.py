"""Plant defects in guards, one at a time, and see whether the tests that watch over them fail.

    python bench/mutants.py            # all of bench/mutants.yaml; about half an hour on two cores
    python bench/mutants.py --only fetch

Each defect is planted in a copy of the project. The tests run in a fork of a process that has imported the packages
that all need, and nothing of the project. A defect that no test notices survives; one that the tests can't be run
with is no defect, and fails the bench. Ends with 1 if less than SCORE of them are caught.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
SCORE = 0.95
LIMIT = 300.0  # seconds for the tests of a defect; one that makes them hang is caught
FAILED, HANGS = 1, 128 + signal.SIGKILL  # exit code of pytest when a test fails, and of a run that was ended


class Mutant(NamedTuple):
    """A defect: in ``file``, below ``src/flexround``, ``old``, there ``count`` times, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]
    count: int = 1

    def planted(self, text: str) -> str:
        """Return a source text with the defect.

        Raises:
            ValueError: the text isn't what the defect is made for.
        """
        if text.count(self.old) != self.count:
            raise ValueError(f"{self.name}: {self.file} has its text {text.count(self.old)} times, not {self.count}")
        return text.replace(self.old, self.new)


def read() -> list[Mutant]:
    """Return the defects of the file beside this one."""
    return [Mutant(**entry) for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


def preload() -> None:
    """Import what is slow, in this process, so that its forks needn't."""
    sys.path.insert(0, str(ROOT / "src"))
    from flexround.jobs import server

    os.environ.update(server.NO_THREADS)
    for name in server.PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    sys.path.remove(str(ROOT / "src"))


def copy(directory: Path) -> Path:
    """Copy the files of the project that git knows, or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)
    return directory


def run(tests: Sequence[str], tree: Path, log: Path, limit: float = LIMIT) -> int:
    """Run tests of a copy of the project in a fork; return pytest's exit code, HANGS if they took too long."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            os.setsid()
            code = _test(tests, tree, log)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + limit
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(done[1])
    return code if code >= 0 else 128 - code


def _test(tests: Sequence[str], tree: Path, log: Path) -> int:
    """Become a process that knows the copy alone, and run its tests."""
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(tree)
    ours = ("flexround", "conftest", "pytest", "_pytest")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    own = {str(ROOT / name) for name in ("", "src", "tests", "bench")}  # but .venv, which lies below it, too
    sys.path[:] = [str(tree / "src"), *(path for path in sys.path if path not in own)]
    os.environ["PYTHONPATH"] = str(tree / "src")
    import pytest

    temporary = tree.with_name(f"{tree.name}-tests")
    names = [f"tests/{test}" for test in tests]
    code = pytest.main([*names, "-x", "-q", "-p", "no:cacheprovider", f"--basetemp={temporary}"])
    sys.stdout.flush()
    return int(code)


def attempt(mutant: Mutant, tree: Path, logs: Path) -> int:
    """Plant a defect in a copy of the project, run its tests, and take it out again; return as ``run`` does."""
    path = tree / "src/flexround" / mutant.file
    text = path.read_text()
    path.write_text(mutant.planted(text))
    try:
        return run(mutant.tests, tree, logs / (re.sub(r"\W+", "-", mutant.name) + ".log"))
    finally:
        path.write_text(text)


def work(mutants: Sequence[Mutant], tree: Path, logs: Path, results: Path) -> None:
    """Try some defects in a copy of their own, when their tests have passed without any; note what became of each."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if tests and (code := run(tests, copy(tree), logs / f"{tree.name}.log", 10 * LIMIT)):
        raise SystemExit(f"pytest ends with {code} without a defect: {logs / tree.name}.log")
    with open(results, "w") as file:
        for mutant in mutants:
            code = attempt(mutant, tree, logs)
            word = {0: "SURVIVED", FAILED: "caught", HANGS: "caught"}.get(code, f"BROKEN, pytest ends with {code}")
            print(f"{word}: {mutant.name}", flush=True)
            file.write(f"{word}\n")


def main() -> None:
    """Try all defects, several at a time, and print what became of each."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="of those whose name has this in it")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests run at a time")
    arguments.add_argument("--logs", type=Path, default=Path("logs/mutants"), help="where pytest's outputs are kept")
    given = arguments.parse_args()
    mutants = [mutant for mutant in read() if given.only in mutant.name]
    logs, start = given.logs.resolve(), time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    preload()
    with tempfile.TemporaryDirectory() as directory:
        pids = []
        for number in range(given.jobs):
            results = Path(directory) / f"{number}.txt"
            if (pid := os.fork()) == 0:
                try:
                    work(mutants[number :: given.jobs], Path(directory) / f"project{number}", logs, results)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            pids.append(pid)
        broken = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids) > 0
        words = [line for path in Path(directory).glob("*.txt") for line in path.read_text().splitlines()]
    caught = words.count("caught")
    print(f"{caught} of {len(mutants)} caught, {words.count('SURVIVED')} survived; {time.monotonic() - start:.0f} s")
    sys.exit(broken or caught < SCORE * len(mutants) or caught + words.count("SURVIVED") < len(mutants))


if __name__ == "__main__":
    main()
