"""Damage every kind of file that the suite reads, and see what its reader does: figures in bench/RESULTS.md.

A case changes one file: a bit, a piece or the end of it, or, in JSON and YAML, a key or a value. The reader then gives
what it gave before, other data, or one of the project's errors. Any other exception, a hang, and other data where a
sha256 is recorded (``pinned``) are defects; each is listed with the seed that makes it again.
"""

import argparse
import contextlib
import copy
import dataclasses
import fnmatch
import importlib
import io
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # its small networks and made-up results
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "worlds"))  # the generator of mini's texts
from flexround.errors import FlexRoundError

GROUPS = ("fuzz_settings", "fuzz_results", "fuzz_inputs")
DEFECTS = ("traceback", "hang", "silent")
SECONDS = 20  # of a case
NONSENSE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2, 10**25, 1e300, -0.5, float("nan"), float("inf"), "", " ", "5", "1e400", "../../x"),
    *("/etc/passwd", "a b", "$(touch ran)", "=1+1", "\u2028", "\r", "\x0b", "\ud800", "no:thing", [], [[]], {}),
    *({"a": 1}, [None], ["x", 1], "x" * 5000),
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: of the kind.
        make: writes whole files into a directory.
        read: reads them from the directory, as the suite does; what it returns is compared.
        pinned: whether a sha256 is recorded for what is read, so that no other data may come out of it.
        files: patterns of the files that are damaged.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], Any]
    pinned: bool = False
    files: tuple[str, ...] = ("*",)


def damaged(content: bytes, name: str, rng: random.Random) -> bytes:
    """Return other content for a file."""
    if name.endswith((".json", ".yaml", ".lock")) and rng.random() < 0.7:
        return _restructured(content, name, rng)
    start = rng.randrange(len(content) or 1)
    size = rng.choice((1, 4, 64, 1000))
    way = rng.choice(("bit", "bit", "bit", "cut", "end", "twice", "noise", "zeros"))
    if way == "bit":
        flipped = bytearray(content)
        if flipped:
            flipped[start] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    new = {
        "cut": b"",
        "twice": 2 * content[start : start + size],
        "noise": rng.randbytes(size),
        "zeros": bytes(size),
    }
    return content[:start] if way == "end" else content[:start] + new[way] + content[start + size :]


def _restructured(content: bytes, name: str, rng: random.Random) -> bytes:
    """Return JSON or YAML in which a key is missing or misspelt, or a value is nonsense."""
    is_json = name.endswith(".json")
    document = copy.deepcopy(json.loads(content) if is_json else yaml.safe_load(content))  # aliases become one object
    places = list(_places(document))
    if not places:
        return b""
    owner, key = rng.choice(places)
    way = rng.choice(("remove", "value", "value", "value", "misspell"))
    if way == "value":
        owner[key] = rng.choice(NONSENSE)
    else:
        value = owner.pop(key)
        if way == "misspell" and isinstance(owner, dict):
            owner[f"{key}x"] = value
    if is_json:
        return json.dumps(document, indent=1).encode()
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the owner and the key, or index, of every value."""
    keys = document.keys() if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in list(keys):
        yield document, key
        yield from _places(document[key])


def comparable(value: Any) -> Any:
    """Return what stands for a value: equal values have equal ones, NaN included."""
    if isinstance(value, dict):
        return [(comparable(key), comparable(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().contiguous().view(-1).view(dtype=importlib.import_module("torch").uint8).numpy()
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes()
    return repr(value)


def outcome(kind: Kind, directory: Path, whole: Any) -> tuple[str, str]:
    """Read a damaged directory; return what became of it, and of a defect its last lines."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = comparable(kind.read(directory))
    except FlexRoundError as error:
        text = str(error)
        return ("refused", "") if text else ("traceback", "an error without a text")
    except SystemExit as end:
        return ("refused", "") if end.code else ("traceback", "exit 0")
    except TimeoutError:
        return "hang", ""
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/flexround/" in frame.filename]
        place = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in [frame, *ours[::-1]][:4])
        return "traceback", f"{type(error).__name__}: {str(error)[:120]} at {place}"
    finally:
        signal.alarm(0)
    if found == whole:
        return "same", ""
    return ("silent", "other data") if kind.pinned else ("other", "")


def cases(kind: Kind, seeds: range, root: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield seed, damaged file, outcome and details of each case; files are made in ``root``."""
    original, work = root / "whole", root / "work"
    original.mkdir(parents=True)
    kind.make(original)
    shutil.copytree(original, work, symlinks=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        whole = comparable(kind.read(work))
    names = sorted(str(path.relative_to(original)) for path in original.rglob("*") if path.is_file())
    chosen = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in kind.files)]
    for seed in seeds:
        rng = random.Random(f"{kind.name} {seed}")
        name = rng.choice(chosen)
        shutil.rmtree(work)
        shutil.copytree(original, work, symlinks=True, copy_function=os.link)
        content = damaged((original / name).read_bytes(), name, rng)
        (work / name).unlink()
        (work / name).write_bytes(content)
        yield seed, name, *outcome(kind, work, whole)
        for path in names:  # a reader may write into what it was given, but not into the originals
            if not (original / path).is_file():
                raise AssertionError(f"{kind.name} {seed}: {path} is gone")


def kinds() -> list[Kind]:
    """Return all kinds."""
    return [kind for group in GROUPS for kind in importlib.import_module(group).KINDS]


def run(kind: Kind, seeds: range) -> tuple[Counter[str], list[str]]:
    """Return how often each outcome came about, and a line for each defect."""
    with tempfile.TemporaryDirectory() as root:
        found = list(cases(kind, seeds, Path(root)))
    defects = [
        f"{kind.name} --from {seed} --cases 1: {name}: {what} {why}"
        for seed, name, what, why in found
        if what in DEFECTS
    ]
    return Counter(what for _, _, what, _ in found), defects


def main() -> None:
    """Run kinds and print a line for each; any defect ends it with 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--cases", type=int, default=400, help="of each kind")
    parser.add_argument("--from", dest="first", type=int, default=0, help="seed of the first case")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    total: Counter[str] = Counter()
    lines: list[str] = []
    for kind in kinds():
        if any(fnmatch.fnmatch(kind.name, pattern) for pattern in arguments.kinds):
            start = time.monotonic()
            counts, defects = run(kind, range(arguments.first, arguments.first + arguments.cases))
            total, lines = total + counts, lines + defects
            told = ", ".join(f"{counts[what]} {what}" for what in ("refused", "same", "other", *DEFECTS))
            print(f"{kind.name}: {told}; {time.monotonic() - start:.0f} s", flush=True)
    print(*lines, sep="\n")
    print(f"{total.total()} cases: {', '.join(f'{count} {what}' for what, count in total.items())}")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
