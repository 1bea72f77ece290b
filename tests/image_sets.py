"""Small image sets for the tests of the image tasks."""

import numpy as np
from PIL import Image

from flexround.settings import schema
from flexround.tasks import protocol

OPTIONS = {"classes": 3, "train_count": 12, "val_count": 6, "resize": 40, "crop": 32}


def build(**options):
    return protocol.build(schema.TaskSpec(module="flexround.tasks.images:ImageNet", options=OPTIONS | options))


def save(path, size, rng, mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    small.convert(mode).save(path, **options)


def write(root):
    """Write three classes of odd-sized images."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for name in ("n01", "n02", "n03"):
            for i in range(count):
                size = tuple(int(side) for side in rng.integers(33, 90, size=2))
                save(root / split / name / f"{name}_{i}.JPEG", size, rng, quality=95)


def digits_task(**options):
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    return protocol.build(schema.TaskSpec(module="flexround.mini.digits:Digits", options=plain | options))
