"""Decoding, resizing and cropping; the pixels are those of torchvision's transforms.

Not its random classes: they draw from torch's global generator. Bilinear as in BRECQ and QDrop (specification
7), but for the central square.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import functional

from flexround.errors import InputError

SCALE, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random box: its share of the image's area, and width / height
ATTEMPTS = 10
THREADS = 16  # PIL frees the interpreter lock while it decodes and resizes
Transform = Callable[[int, Image.Image], np.ndarray]  # from an image and its position


def resize_and_crop(image: Image.Image, resize: int, crop: int) -> np.ndarray:
    """Resize the shorter side to ``resize`` and cut the centre: uint8 (crop, crop, 3). Needs crop <= resize."""
    return np.asarray(functional.center_crop(functional.resize(image, [resize]), [crop]))


def central_square(image: Image.Image, size: int) -> np.ndarray:
    """Cut the largest square from the centre and resize it, bicubic: uint8 (size, size, 3)."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((size, size), Image.Resampling.BICUBIC))


def random_resized_crop(image: Image.Image, crop: int, rng: Generator) -> np.ndarray:
    """Cut a random box, see ``draw_box``, and resize it to uint8 (crop, crop, 3)."""
    box = draw_box(*image.size, rng)
    return np.asarray(image.crop(box).resize((crop, crop), Image.Resampling.BILINEAR))


def draw_box(width: int, height: int, rng: Generator) -> tuple[int, int, int, int]:
    """Draw (left, top, right, bottom) as torchvision's RandomResizedCrop does, with its central fallback."""
    for _ in range(ATTEMPTS):
        area = width * height * rng.uniform(*SCALE)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return left, top, left + w, top + h
    aspect = min(max(width / height, ASPECT[0]), ASPECT[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def flip(image: np.ndarray, rng: Generator) -> np.ndarray:
    """Mirror (H, W, 3) left to right with probability 1/2."""
    return image[:, ::-1] if rng.random() < 0.5 else image


def decode_all(root: Path, files: Sequence[str], transform: Transform, out: np.ndarray) -> np.ndarray:
    """Decode images on several cores, put ``transform(position, image)`` into ``out[position]`` and return ``out``.

    CMYK, grey and palette images become RGB, as by torchvision's loader. ``transform`` returns uint8 of the shape of
    ``out[0]`` and is called from several threads; ``out`` is uint8 (N, H, W, 3), e.g. a memory map.

    Raises:
        InputError: a file can't be decoded.
    """

    def work(position: int, file: str) -> None:
        try:
            image = pil_loader(root / file)
        except OSError as error:
            raise InputError(f"{root / file}: can't be read ({error}); get it again from the source") from error
        out[position] = transform(position, image)

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(work, range(len(files)), files))
    return out
