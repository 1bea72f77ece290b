"""The offline image set: scikit-learn's 8x8 handwritten digits, enlarged to 32x32 colour and made harder.

Each image is a digit under a random affine warp, in a random colour a little lighter than its background. The
background is a gradient with fragments of other digits, and noise. No base digit or fragment is in both splits.

Every machine generates the same bytes: PCG64 uniforms, float64 throughout, one rounding to uint8 at the end.
"""

import functools
from pathlib import Path

import numpy as np
from numpy.random import Generator
from scipy import ndimage
from sklearn.datasets import load_digits

from flexround.mini.options import DigitsOptions
from flexround.tasks.image_sets import ArrayTask

SIZE = 32
CLASSES = 10
VALIDATION_SHARE = 0.2  # fraction of the base digits
FRAGMENTS = 3  # pieces of other digits in each image
CHUNK = 500  # images rendered at once; changing it reorders the draws and so changes the data

# Difficulty: with these values the mini networks reach 92 to 96 % top-1. Colours are in 0..1.
ROTATION, SHEAR, SHIFT = 18.0, 0.2, 3.0  # degrees, ratio, pixels; drawn from minus to plus the value
SCALE = (0.7, 1.0)
BACKGROUND = (0.05, 0.5)
CONTRAST = (0.22, 0.58)  # how much lighter the digit is than the mean of its background
FRAGMENT_CONTRAST = 0.25
TINT = (0.2, 1.0)  # weight of each colour channel in the contrast
NOISE = 0.07  # largest standard deviation


class Digits(ArrayTask):
    """The offline image set of the mini scale; the random warps of its images serve as augmentation."""

    options: DigitsOptions
    input_shape = (3, 32, 32)

    def prepare(self, out: Path, sources: Path) -> None:
        """Generate the data set; ``sources`` is not read."""
        self.save(out, make(self.options.train, self.options.val, self.options.seed))


def make(train: int, validation: int, seed: int) -> dict[str, np.ndarray]:
    """Generate ``train`` training images from four fifths of the base digits, ``validation`` images from the rest.

    Returns:
        ``{train,val}_images`` uint8 (N, 32, 32, 3), ``{train,val}_labels`` int64 (N,) and ``{train,val}_base`` int64
        (N,), the base digit of each image.
    """
    glyphs, labels = base_digits()
    rng = np.random.Generator(np.random.PCG64(seed))
    arrays: dict[str, np.ndarray] = {}
    for split, members, count in zip(("train", "val"), split_bases(labels, rng), (train, validation), strict=True):
        base = np.concatenate([rng.permutation(members) for _ in range(-(-count // len(members)))])[:count]
        others = glyphs[members]
        pieces = [render(glyphs[base[i : i + CHUNK]], others, rng) for i in range(0, count, CHUNK)]
        arrays |= {f"{split}_images": np.concatenate(pieces), f"{split}_labels": labels[base], f"{split}_base": base}
    return arrays


def base_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits as smooth glyphs, float64 (1797, 32, 32) in 0..1, and labels int64 (1797,)."""
    digits = load_digits()
    # The 8x8 ink counts are area averages of a binary stroke: interpolate, then sharpen to a stroke again.
    zoom = functools.partial(ndimage.zoom, zoom=SIZE / 8, order=3, mode="grid-constant", grid_mode=True)
    large = np.stack([zoom(image) for image in digits.images])
    return np.clip((large - 5.0) / 6.0, 0.0, 1.0), digits.target.astype(np.int64)


def split_bases(labels: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and validation base digits, with the same ratio in each class."""
    train, validation = [], []
    for label in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == label))
        held_out = round(len(members) * VALIDATION_SHARE)
        validation.append(members[:held_out])
        train.append(members[held_out:])
    return np.concatenate(train), np.concatenate(validation)


def render(glyphs: np.ndarray, others: np.ndarray, rng: Generator) -> np.ndarray:
    """Return one image uint8 (N, 32, 32, 3) per glyph of ``glyphs`` (N, 32, 32), with fragments of ``others``."""
    count = len(glyphs)
    image = background(count, rng)
    for _ in range(FRAGMENTS):
        ink = fragments(others[rng.integers(len(others), size=count)], rng)
        image = paint(image, ink, FRAGMENT_CONTRAST * rng.random(count), rng)
    ink = warp(glyphs, *draw_warps(count, rng))
    image = paint(image, ink, uniform(rng, *CONTRAST, count), rng)
    # A sum of four uniforms is Gaussian enough and needs no function whose last bit depends on the machine.
    noise = sum(rng.random(image.shape) - 0.5 for _ in range(4)) * np.sqrt(3.0)
    image += noise * (NOISE * rng.random(count))[:, None, None, None]
    return np.floor(np.clip(image, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def background(count: int, rng: Generator) -> np.ndarray:
    """Return linear gradients between two random colours, float64 (N, 32, 32, 3) in 0..1."""
    axis = np.linspace(-0.5, 0.5, SIZE)
    angle = uniform(rng, 0.0, 2 * np.pi, count)[:, None, None]
    ramp = 0.5 + (np.cos(angle) * axis[:, None] + np.sin(angle) * axis[None, :]) / np.sqrt(2.0)
    start, end = uniform(rng, *BACKGROUND, (2, count, 1, 1, 3))
    return start + (end - start) * 0.6 * ramp[..., None]


def paint(image: np.ndarray, ink: np.ndarray, contrast: np.ndarray, rng: Generator) -> np.ndarray:
    """Paint ``ink`` (N, 32, 32) in a colour that is lighter than each image's mean by ``contrast`` (N,)."""
    mean = image.mean(axis=(1, 2))
    tint = uniform(rng, *TINT, mean.shape)
    colour = mean + contrast[:, None] * tint / tint.mean(axis=1, keepdims=True)
    return image + ink[..., None] * (colour[:, None, None, :] - image)


def fragments(glyphs: np.ndarray, rng: Generator) -> np.ndarray:
    """Return warped ``glyphs``, moved towards the border so that part of a stroke shows next to the digit."""
    angle, shear, scale, shift = draw_warps(len(glyphs), rng)
    away = uniform(rng, 0.0, 2 * np.pi, len(glyphs))
    shift = shift + 16.0 * np.stack([np.cos(away), np.sin(away)], axis=1)
    return warp(glyphs, angle, shear, scale, shift)


def draw_warps(count: int, rng: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw angle (N,) in radians, shear (N,), scale (N, 2) and shift (N, 2) in pixels."""
    return (
        uniform(rng, -ROTATION, ROTATION, count) * np.pi / 180.0,
        uniform(rng, -SHEAR, SHEAR, count),
        uniform(rng, *SCALE, (count, 2)),
        uniform(rng, -SHIFT, SHIFT, (count, 2)),
    )


def warp(images: np.ndarray, angle: np.ndarray, shear: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Apply one affine map about the centre to each image (N, 32, 32), bilinear, empty outside."""
    cos, sin = np.cos(angle), np.sin(angle)
    inverse = np.array([[cos, sin + shear], [-sin, cos]]) / scale.T[:, None]  # output pixel -> input pixel
    grid = np.arange(SIZE) - (SIZE - 1) / 2
    y = grid[None, :, None] - shift[:, 0, None, None]
    x = grid[None, None, :] - shift[:, 1, None, None]
    matrix = inverse[..., None, None]
    rows = matrix[0, 0] * y + matrix[0, 1] * x + (SIZE - 1) / 2
    columns = matrix[1, 0] * y + matrix[1, 1] * x + (SIZE - 1) / 2
    warped = [
        ndimage.map_coordinates(image, (row, column), order=1)
        for image, row, column in zip(images, rows, columns, strict=True)
    ]
    return np.stack(warped)


def uniform(rng: Generator, low: float, high: float, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return float64 values in [low, high)."""
    return low + (high - low) * rng.random(shape)
