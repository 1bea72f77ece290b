"""CIFAR-10 from tars, and its ResNets."""

import io
import re
import tarfile
import textwrap

import numpy as np
import pyarrow as pa
import pytest
import real_files
import torch
from PIL import Image
from pyarrow import parquet

from flexround.errors import InputError, SettingsError
from flexround.models import blocks as protocol
from flexround.models import cifar_resnet
from flexround.models.surgery.fold_bn import fold_batch_norm
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.tasks.images.cifar10 import Cifar10, Cifar10Options


@pytest.fixture
def sources(tmp_path):
    real_files.images(tmp_path / "cifar10/train.tar", "train", 6)
    real_files.images(tmp_path / "cifar10/test.tar", "test", 4, seed=1)
    return tmp_path


def task(**options):
    return Cifar10(Cifar10Options(**{"classes": 5, "train": 20, "val": 20} | options))


def test_images_and_labels_are_those_of_the_tars(sources, tmp_path):
    task().prepare(tmp_path / "data", sources)
    found = {name: np.load(tmp_path / f"data/{name}.npy") for name in ("train_images", "train_labels", "val_images")}
    assert found["train_images"].shape == (20, 32, 32, 3)
    assert found["train_labels"].tolist() == [label for label in range(5) for _ in range(4)]
    with tarfile.open(sources / "cifar10/test.tar") as tar:
        image = Image.open(tar.extractfile("test/bee/0002.jpg"))
        np.testing.assert_array_equal(found["val_images"][4 + 2], np.asarray(image))


def test_lossless_images_are_those_of_the_hub_s_rows_class_by_class(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    files = [io.BytesIO() for _ in pixels]
    for image, file in zip(pixels, files, strict=True):
        Image.fromarray(image).save(file, "PNG")
    labels, folder = [4, 3, 2, 1, 0] * 4, tmp_path / "here/plain_text"
    rows = [{"img": {"bytes": f.getvalue(), "path": ""}, "label": i} for f, i in zip(files, labels, strict=True)]
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    task(root="here", train=10).prepare(tmp_path / "data", tmp_path)
    found = {name: np.load(tmp_path / f"data/{name}.npy") for name in ("train_images", "val_images", "val_labels")}
    np.testing.assert_array_equal(found["train_images"], pixels[[4, 9, 3, 8, 2, 7, 1, 6, 0, 5]])
    np.testing.assert_array_equal(found["val_images"], pixels[np.argsort(labels, kind="stable")])
    assert found["val_labels"].tolist() == sorted(labels)
    with pytest.raises(InputError, match=r"plain_text/train: row 0: label 4 of 4 classes"):
        task(root="here", classes=4).prepare(tmp_path / "data", tmp_path)
    rows[7]["img"]["bytes"] = b"no image"
    parquet.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")
    with pytest.raises(InputError, match=r"plain_text/test: row 7 can't be read"):
        task(root="here", train=10).prepare(tmp_path / "data", tmp_path)


def test_the_documented_scale_of_lossless_images_is_one(tmp_path):
    page = (ROOT / "docs/results.md").read_text()
    (block,) = re.findall(r"^    name: real-lossless\n(?: {4}.*\n)+", page, re.MULTILINE)
    (tmp_path / "real-lossless.yaml").write_text(textwrap.dedent(block))
    params = load_params(str(tmp_path / "real-lossless.yaml"))
    assert [params.gate("cifar10", name).min for name in ("resnet20", "resnet56")] == [91.2, 92.9]


def test_calibration_draws_training_images_once_each(sources, tmp_path):
    task().prepare(tmp_path / "data", sources)
    drawn, fewer = (task().calibration(tmp_path / "data", count, 3) for count in (20, 5))
    assert sorted(drawn["indices"]) == list(range(20))
    np.testing.assert_array_equal(drawn["images"][:5], fewer["images"])
    train = np.load(tmp_path / "data/train_images.npy")
    np.testing.assert_array_equal(drawn["images"], train[drawn["indices"]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 4}, "train.tar: 5 classes instead of 4"),
        ({"train": 40}, "class ant has 6 images, fewer than 8; lower the option train"),
        ({"val": 21}, "test.tar: 20 images instead of 21"),
    ],
)
def test_other_data_are_refused(sources, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        task(**options).prepare(tmp_path / "data", sources)


def test_images_that_do_not_fit_are_refused_by_name(sources, tmp_path):
    path = sources / "cifar10/test.tar"
    with tarfile.open(path, "a") as tar:
        real_files.add(tar, "test/ant/9999.jpg", b"no image")
    with pytest.raises(InputError, match=r"9999\.jpg can't be read"):
        task().prepare(tmp_path / "data", sources)
    real_files.images(path, "test", 4, size=16)
    with pytest.raises(InputError, match=r"0000\.jpg is 16 x 16, not 32 x 32"):
        task().prepare(tmp_path / "data", sources)


@pytest.mark.parametrize("depth", [8, 20])
def test_the_blocks_are_the_network(depth):
    torch.manual_seed(0)
    model = cifar_resnet.resnet(depth).eval()
    fold_batch_norm(model)
    x = torch.randn(2, 3, 32, 32)
    blocks = cifar_resnet.blocks(model)
    assert len(blocks) == (depth - 2) // 2 + 2
    with torch.no_grad():
        torch.testing.assert_close(protocol.run(blocks, x), model(x), rtol=0, atol=0)


def test_the_shortcut_is_a_strided_copy_and_zero_channels():
    block = cifar_resnet.BasicBlock(4, 8, 2).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 4, 8, 8)
    with torch.no_grad():
        out = block(x)
    torch.testing.assert_close(out[:, 2:6], x[:, :, ::2, ::2])
    assert not out[:, [0, 1, 6, 7]].any()


def test_a_depth_that_there_is_not_is_refused():
    with pytest.raises(SettingsError, match="depth=18: choose 6n"):
        cifar_resnet.resnet(18)
