"""Stand-ins of data sets: the first rows of the mini scale's texts, and noise as images, in the real files."""

import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from pyarrow import parquet

from flexround.errors import SettingsError, suggest
from flexround.rehearsal.scale import CLASSES, IMAGES
from flexround.settings.layout import PARAMS
from flexround.settings.sources import Source

SHARD = "00000-of-00001"
TRAIN, OTHERS = 48, 12  # rows of a split
LINES = 8  # lines of text in place of a row
DIFFERENT, MODES, PNG = 41, {1: "L", 2: "CMYK"}, 3  # images; what is odd about some, by their number
TEXTS = ("wikitext2", "ptb", "c4")
QUESTIONS = ("boolq", "piqa", "hellaswag", "winogrande", "arc-easy", "arc-challenge", "openbookqa")
FROZEN = {name: name for name in ("glue", "squad", "wikitext2", "ptb", "webnlg")} | {"c4": "commonsense/c4"}
FROZEN |= {name: f"commonsense/commonsense/{name.replace('-', '_')}" for name in QUESTIONS}  # folders of params/data


def write(name: str, source: Source, path: Path) -> None:
    """Write the data set of a row of ``params/sources.yaml``.

    Raises:
        SettingsError: none is known for this name.
    """
    path.mkdir(parents=True)
    if name == "imagenet":
        _imagenet(path)
    elif name in FROZEN:
        for pattern in source.files:
            file = path / pattern.replace("*", SHARD)
            file.parent.mkdir(parents=True, exist_ok=True)
            count = (TRAIN if "train" in file.name else OTHERS) * (LINES if name in TEXTS else 1)
            _cut(PARAMS / "data" / FROZEN[name], file, count)
    else:
        raise SettingsError(
            f"no stand-in for the data set {suggest(name, ('imagenet', *FROZEN))}; add one to {__name__}"
        )


def _cut(folder: Path, file: Path, count: int) -> None:
    """Write ``file`` with the first rows of the same split that lies in ``folder``."""
    if file.suffix == ".parquet":
        own = folder / file.parent.name  # GLUE has a folder for each task
        split = re.search(r"train|test|validation(_\w*matched)?", file.name)
        assert split is not None
        # WikiText-2's test split is frozen for other tasks alone
        frozen = [*own.glob(f"{split[0]}-*"), *folder.rglob(f"{split[0]}-*"), *own.glob("validation-*")]
        parquet.write_table(parquet.read_table(frozen[0]).slice(0, count), file)
    elif file.suffix == ".json":
        entries = json.loads((folder / file.name).read_text())["entries"]
        chosen = entries[: count // 2] + entries[-(count // 2) :]  # of seen categories, then of others
        renumbered = [{str(number): next(iter(entry.values()))} for number, entry in enumerate(chosen, 1)]
        file.write_text(json.dumps({"entries": renumbered}, indent=4))
    else:
        compressed = file.suffix == ".gz"
        content = next(folder.rglob(file.name)).read_bytes()
        lines = (gzip.decompress(content) if compressed else content).splitlines(keepends=True)[:count]
        file.write_bytes(gzip.compress(b"".join(lines)) if compressed else b"".join(lines))


def _imagenet(path: Path) -> None:
    """Write noise, a folder for each class; most images are the same few again."""
    made = list(_images())
    for split, count in IMAGES.items():
        for number in range(count):
            name = f"n{10000000 + number % CLASSES}"
            file = path / split / name / f"{name}_{number}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(made[number % len(made)])


def _images() -> Iterator[bytes]:
    """Yield image files in two sizes, all called JPEG; as in ILSVRC2012 some are grey, in CMYK, or PNG."""
    rng = np.random.default_rng(0)
    for number in range(DIFFERENT):
        image = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).convert(MODES.get(number, "RGB"))
        file = io.BytesIO()
        resized = image.resize((64, 48) if number % 2 else (40, 60), Image.Resampling.BICUBIC)
        resized.save(file, "PNG" if number == PNG else "JPEG", quality=90)
        yield file.getvalue()
