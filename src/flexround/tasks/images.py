"""Image classification, top-1 and top-5: ImageNet, or any other ImageFolder.

Sections 4.2 and appendices B, C, E of the paper; preprocessing and calibration as in BRECQ and QDrop (specification 7).
"""

import abc
import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import functional

from flexround.errors import InputError, NumericalError
from flexround.io.artifacts import atomic_write, read_text, write_manifest, write_text
from flexround.machine.seeding import derive
from flexround.settings.validation import validate
from flexround.tasks.image_training import TrainingImages, train
from flexround.tasks.options import FinetuneSettings, ImageNetOptions, ImageOptions
from flexround.tasks.protocol import Evaluation, Inputs, Split, draw_indices

log = logging.getLogger(__name__)
ROOT_FILE = "train_root.txt"
SCALE, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random box: its share of the image's area, and width / height
ATTEMPTS = 10
THREADS = 16  # PIL releases the interpreter lock while it decodes and resizes
Transform = Callable[[int, Image.Image], np.ndarray]  # of an image's position and the image


class ImageTask(abc.ABC):
    """The common part of all image tasks: prepared validation images, normalization, training, metrics.

    A subclass prepares ``val_images.npy`` uint8 (N, H, W, 3) and ``val_labels.npy`` int64 (N,).
    """

    input_dtype = "float32"
    head: ClassVar[dict[str, Any]] = {}  # the factory sets the number of classes

    def __init__(self, options: ImageOptions) -> None:
        self.options = options

    @abc.abstractmethod
    def training_images(self, data: Path) -> TrainingImages:
        """Return the training set."""

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return calibration images as float32 (N, 3, H, W), normalized, on the CPU."""
        return Inputs(self.normalise(samples["images"], "cpu"))

    def normalise(self, images: np.ndarray, device: torch.device | str) -> torch.Tensor:
        """Turn uint8 (N, H, W, 3) into float32 (N, 3, H, W) on ``device``, channels last in memory (faster on CPUs)."""
        mean, std = (torch.tensor(values, device=device) for values in (self.options.mean, self.options.std))
        pixels = torch.tensor(images, device=device).to(torch.float32) / 255
        return ((pixels - mean) / std).permute(0, 3, 1, 2)

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place; see ``FinetuneSettings``."""
        checked = validate(FinetuneSettings, settings, "train settings of an image task")
        facts = train(model, self.training_images(data), self.normalise, checked)
        return {"settings": checked.model_dump(mode="json"), **facts}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return top-1 and top-5 accuracy on the validation images, read from a memory map batch by batch."""
        images, labels = np.load(data / "val_images.npy", mmap_mode="r"), np.load(data / "val_labels.npy")
        model.eval()
        hits = []
        with torch.no_grad():
            for start in range(0, len(labels), batch):
                logits = model(self.normalise(images[start : start + batch], device))
                hits.append(hits_at(logits, labels[start : start + batch]))
        return of_hits(dict(zip(("top1", "top5"), np.concatenate(hits, axis=1), strict=True)))


def of_hits(scores: dict[str, np.ndarray]) -> Evaluation:
    """Return accuracies in percent and their standard errors, from each metric's hits, uint8 (N,)."""
    values = {name: 100.0 * float(each.mean()) for name, each in scores.items()}
    spread = {name: 100.0 * float(each.std(ddof=1)) if len(each) > 1 else 0.0 for name, each in scores.items()}
    stderr = {name: value / len(scores[name]) ** 0.5 for name, value in spread.items()}
    return Evaluation(values, stderr, {name: len(each) for name, each in scores.items()}, scores)


def hits_at(logits: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    """Return whether each label ranks first, and whether among the first five: uint8 (2, B)."""
    if labels.max() >= logits.shape[1]:
        raise InputError(f"the model has {logits.shape[1]} outputs, but the data has class {labels.max()}")
    if torch.isnan(logits).any():
        raise NumericalError("NaN among the logits of validation images; the model has diverged")
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices.cpu().numpy()
    equal = ranked == labels[:, None]
    return np.stack([equal[:, 0], equal.any(axis=1)]).astype(np.uint8)


class ImageNet(ImageTask):
    """ImageNet, or any data set in the ImageFolder layout."""

    options: ImageNetOptions

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return 3, self.options.crop, self.options.crop

    def prepare(self, out: Path, sources: Path) -> None:
        """Decode the validation images once, and write the list of training images.

        Classes and images have the order of torchvision's ``ImageFolder``.

        Raises:
            InputError: no data set, a wrong number of classes or images, or an image that can't be decoded.
        """
        options = self.options
        root = sources / options.root
        if not root.is_dir():
            raise InputError(
                f"{root}: this data set is missing. Put its images there as train/CLASS/IMAGE and val/CLASS/IMAGE "
                "(params/sources.yaml tells where to get them), or set `root` in the task's options"
            )
        train, val = (ImageFolder(root / split) for split in ("train", "val"))
        found = {"classes": len(val.classes), "train_count": len(train), "val_count": len(val)}
        for name, count in found.items():
            if getattr(options, name) not in (None, count):
                raise InputError(f"{root}: {name} is {count}, not {getattr(options, name)}; complete it or set {name}")
        log.info("%s: decoding %d validation images", root, len(val))
        files = files_of(val)

        def decode(path: Path) -> None:
            shape = len(files), options.crop, options.crop, 3
            pixels = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
            decode_all(root / "val", files, self._evaluated, pixels)
            pixels.flush()

        atomic_write(out / "val_images.npy", decode)
        save_array(out / "val_labels.npy", np.array(val.targets))
        write_text(out / "train.txt", "".join(map("{}\t{}\n".format, train.targets, files_of(train))))
        # The images' location is no property of the data, so it isn't in the manifest.
        write_text(out / ROOT_FILE, f"{(root / 'train').resolve()}\n")
        facts = options.model_dump(mode="json", exclude={"root"})
        write_manifest(out, ["val_images.npy", "val_labels.npy", "train.txt"], options=facts)

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training images with the training augmentation, each drawn once (specification 7).

        ``images`` is uint8 (samples, crop, crop, 3), ``indices`` int64 (samples,).
        """
        files, _ = read_index(data)
        indices = draw_indices(len(files), samples, seed)

        def augmented(position: int, image: Image.Image) -> np.ndarray:
            rng, size = np.random.default_rng(derive("calibration augmentation", seed, position)), self.options.crop
            box = image.crop(draw_box(*image.size, rng)).resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(box)[:, :: -1 if rng.random() < 0.5 else 1]  # half of them mirrored left to right

        return {"images": self._decoded(data, files, indices, augmented), "indices": indices}

    def training_images(self, data: Path) -> TrainingImages:
        files, labels = read_index(data)
        return TrainingImages(lambda indices: self._decoded(data, files, indices, self._evaluated), labels)

    def _evaluated(self, _: int, image: Image.Image) -> np.ndarray:
        """Return an image preprocessed for evaluation."""
        resized = functional.resize(image, [self.options.resize])  # the shorter side
        return np.asarray(functional.center_crop(resized, [self.options.crop]))

    def _decoded(self, data: Path, files: list[str], indices: np.ndarray, transform: Transform) -> np.ndarray:
        """Return training images after ``transform``: uint8 (B, crop, crop, 3)."""
        root = Path(read_text(data / ROOT_FILE).rstrip("\n"))
        pixels = np.empty((len(indices), self.options.crop, self.options.crop, 3), np.uint8)
        return decode_all(root, [files[number] for number in indices], transform, pixels)


def files_of(split: ImageFolder) -> list[str]:
    """Return a split's images as ``CLASS/IMAGE``."""
    return [Path(path).relative_to(split.root).as_posix() for path, _ in split.samples]


def read_index(data: Path) -> tuple[list[str], np.ndarray]:
    """Return the training images as ``CLASS/IMAGE``, and their labels, int64 (N,)."""
    rows = [line.split("\t", 1) for line in read_text(data / "train.txt").splitlines()]
    return [file for _, file in rows], np.array([int(label) for label, _ in rows], np.int64)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write ``array``, of any shape, atomically as ``.npy``."""
    atomic_write(path, lambda temporary: np.save(temporary, array))


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


def decode_all(root: Path, files: Sequence[str], transform: Transform, out: np.ndarray) -> np.ndarray:
    """Decode images on several cores, write ``transform(position, image)`` to ``out[position]`` and return ``out``.

    CMYK, grey and palette images become RGB, as with torchvision's loader. Several threads call ``transform``, which
    returns uint8 with the shape of ``out[0]``; ``out`` is uint8 (N, H, W, 3), e.g. a memory map.

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
