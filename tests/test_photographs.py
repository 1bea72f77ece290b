"""Photographs with ImageNet's labels, and one image of each class, from tars."""

import io
import tarfile

import numpy as np
import pytest
import real_files
import torch
from PIL import Image

from flexround.tasks.images.options import PhotographsOptions
from flexround.tasks.images.photographs import Photographs


@pytest.fixture
def sources(tmp_path):
    real_files.samples(tmp_path / "photographs/samples.tar")
    real_files.photographs(tmp_path / "photographs/photographs.tar")
    return tmp_path


def task(**options):
    return Photographs(PhotographsOptions(**{"classes": 3, "val": 2, "size": 16} | options))


def of_member(path, name):
    with tarfile.open(path) as tar:
        return Image.open(io.BytesIO(tar.extractfile(name).read())).convert("RGB")


def test_images_are_the_central_squares_in_the_order_of_index_and_classes(sources, tmp_path):
    task().prepare(tmp_path / "data", sources)
    found = {file.stem: np.load(file) for file in (tmp_path / "data").glob("*.npy")}
    assert found["val_labels"].tolist() == [2, 0]
    assert found["train_labels"].tolist() == [0, 1, 2]
    wide, high = of_member(sources / "photographs/photographs.tar", "dataset/images/8.png"), (4, 0, 36, 32)
    expected = np.asarray(wide.crop(high).resize((16, 16), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(found["val_images"][1], expected)
    tall = of_member(sources / "photographs/samples.tar", "n1_a.JPEG")
    expected = np.asarray(tall.crop((0, 4, 32, 36)).resize((16, 16), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(found["train_images"][0], expected)


def test_pixels_are_normalised_as_tensorflow_s_efficientnet_lite_wants_them():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    expected = (torch.from_numpy(pixels).float() - 127) / 128
    torch.testing.assert_close(task().normalise(pixels, "cpu"), expected.permute(0, 3, 1, 2), rtol=0, atol=1e-6)
