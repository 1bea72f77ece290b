"""The ImageFolder layout: ``ROOT/{train,val}/CLASS/IMAGE``, checked as a whole before anything is decoded."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flexround.errors import InputError, some

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
LISTED = 10


class Index(NamedTuple):
    """The images of a split, by class and then by name.

    Attributes:
        files: paths relative to the split's folder, ``CLASS/IMAGE``.
        labels: int64 (N,), the position of the class among the sorted class names.
    """

    files: list[str]
    labels: np.ndarray


def scan(root: Path, classes: int, counts: dict[str, int | None]) -> dict[str, Index]:
    """Return the index of each split of ``counts``: the images expected there, None for any number.

    Raises:
        InputError: everything that is wrong with the layout, all together.
    """
    if not root.is_dir():
        raise InputError(
            f"{root}: this data set is missing. Put its images there as train/CLASS/IMAGE and val/CLASS/IMAGE "
            "(params/sources.yaml tells where to get them), or set `root` in the task's options"
        )
    problems: list[str] = []
    by_split = {split: _scan_split(root / split, problems) for split in counts}
    if all(by_split.values()):
        problems += _problems(root, by_split, classes, counts)
    if problems:
        raise InputError("\n".join(problems))
    indices = {}
    for split, images in by_split.items():
        files = [f"{name}/{file}" for name, inside in images.items() for file in inside]
        labels = np.repeat(np.arange(len(images)), [len(inside) for inside in images.values()])
        indices[split] = Index(files, labels)
    return indices


def write_index(path: Path, index: Index) -> None:
    """Write one ``label<TAB>file`` line per image."""
    rows = (f"{label}\t{file}\n" for label, file in zip(index.labels, index.files, strict=True))
    path.write_text("".join(rows), newline="\n")


def read_index(path: Path) -> Index:
    """Read what ``write_index`` wrote."""
    rows = [line.split("\t", 1) for line in path.read_text().splitlines()]
    return Index([file for _, file in rows], np.array([int(label) for label, _ in rows], np.int64))


def _scan_split(folder: Path, problems: list[str]) -> dict[str, list[str]]:
    """Return class -> sorted image names; append what doesn't belong there to ``problems``."""
    if not folder.is_dir():
        problems.append(f"{folder}: missing; it must hold one folder of images per class")
        return {}
    folders, stray = _list(folder)
    if stray and not folders:
        problems.append(
            f"{folder}: {len(stray)} files but no class folders; move each image into the folder of its class "
            "(ILSVRC2012 ships its validation images like this; the labels are in its development kit)"
        )
        return {}
    images: dict[str, list[str]] = {}
    for name in folders:
        inner, files = _list(folder / name)
        images[name] = [file for file in files if file.lower().endswith(EXTENSIONS)]
        stray += [f"{name}/{other}" for other in inner + sorted(set(files) - set(images[name]))]
    if stray:
        problems.append(f"{folder}: not image files of a class; remove or convert them: {some(stray, LISTED)}")
    return images


def _list(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the files in ``folder``, hidden ones left out."""
    with os.scandir(folder) as entries:
        visible = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    return [name for name, is_dir in visible if is_dir], [name for name, is_dir in visible if not is_dir]


def _problems(
    root: Path, by_split: dict[str, dict[str, list[str]]], classes: int, counts: dict[str, int | None]
) -> list[str]:
    """Compare the class folders of the splits with each other, and classes and images with the numbers expected."""
    problems = []
    union = set().union(*by_split.values())
    for split, images in by_split.items():
        if missing := sorted(union - set(images)):
            problems.append(f"{root / split}: classes that another split has are missing: {some(missing, LISTED)}")
        if empty := [name for name, files in images.items() if not files]:
            problems.append(f"{root / split}: classes without images: {some(empty, LISTED)}")
    if len(union) != classes:
        problems.append(f"{root}: {len(union)} classes, expected {classes}; complete them or set `classes`")
    for split, expected in counts.items():
        count = sum(len(files) for files in by_split[split].values())
        if expected is not None and count != expected:
            problems.append(
                f"{root / split}: {count} images, expected {expected}; complete them or set `{split}_count` (null: any)"
            )
    return problems
