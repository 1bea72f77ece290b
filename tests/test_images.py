"""Image tasks: reading folders, tars and tables, calibration and metrics; the digits; CIFAR-10's ResNets."""

import hashlib
import io
import math
import tarfile

import image_sets
import numpy as np
import pytest
import real_files
import torch
from image_sets import build, digits_task, save
from PIL import Image
from torch import nn
from torchvision import datasets, transforms

from flexround.errors import InputError, NumericalError
from flexround.mini import digits
from flexround.models import cifar_resnet
from flexround.tasks import images
from flexround.tasks.image_sets import Cifar10, Photographs
from flexround.tasks.images import draw_box
from flexround.tasks.options import Cifar10Options, PhotographsOptions

DIGITS = "8ef700018d6955044c84d1a1fa1ead70e78b46d294a57dd59a47dbe684b3b2b9"


@pytest.fixture
def sources(tmp_path):
    """Return a directory that holds ``imagenet``."""
    image_sets.write(tmp_path / "sources" / "imagenet")
    return tmp_path / "sources"


@pytest.fixture
def prepared(sources, tmp_path):
    build().prepare(tmp_path / "data", sources)
    return tmp_path / "data"


# folders


def test_validation_images_equal_torchvision_s_pipeline(sources, tmp_path):
    val, rng = sources / "imagenet" / "val", np.random.default_rng(1)
    save(val / "n01" / "n01_0.JPEG", (50, 50), rng, mode="CMYK")
    save(val / "n01" / "n01_1.JPEG", (50, 60), rng, mode="L")
    build().prepare(tmp_path / "data", sources)
    steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    steps.append(transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    folder = datasets.ImageFolder(val, transforms.Compose(steps))
    found = build().normalise(np.load(tmp_path / "data/val_images.npy"), "cpu")
    assert found.shape == (6, 3, 32, 32)
    torch.testing.assert_close(found, torch.stack([image for image, _ in folder]), rtol=0, atol=1e-6)
    assert np.load(tmp_path / "data/val_labels.npy").tolist() == folder.targets


def test_calibration_is_nested_and_follows_the_seed(prepared):
    task = build()
    one, again, fewer, other = (task.calibration(prepared, n, s) for n, s in ((9, 1), (9, 1), (4, 1), (9, 2)))
    assert (one["images"].shape, one["images"].dtype) == ((9, 32, 32, 3), np.uint8)
    assert len(set(one["indices"])) == 9
    for name in ("images", "indices"):
        assert np.array_equal(one[name], again[name])
        assert np.array_equal(one[name][:4], fewer[name])
        assert not np.array_equal(one[name], other[name])
    with pytest.raises(InputError, match="choose from 1 to 12"):
        task.calibration(prepared, 13, 0)


def test_random_boxes_have_torchvision_s_areas():
    rng = np.random.default_rng(0)
    boxes = np.array([draw_box(500, 375, rng) for _ in range(4000)])
    torch.manual_seed(0)
    drawn = [
        transforms.RandomResizedCrop.get_params(torch.empty(3, 375, 500), (0.08, 1.0), (3 / 4, 4 / 3))
        for _ in range(4000)
    ]
    theirs = np.array([(left, top, left + width, top + height) for top, left, height, width in drawn])
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= (500, 375)).all()
    assert np.abs(boxes.mean(axis=0) - theirs.mean(axis=0)).max() < 12
    assert np.abs(boxes.std(axis=0) - theirs.std(axis=0)).max() < 8


# metrics


class Table(nn.Module):
    """Looks the logits up by the first pixel's red value."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x):
        return self.logits[(x[:, 0, 0, 0] * 255).round().long()]


def test_top1_top5_and_standard_errors(tmp_path):
    """Of four images of class 3, whose first red value is their number."""
    pixels, task = np.zeros((4, 2, 2, 3), np.uint8), digits_task()
    pixels[:, 0, 0, 0] = range(4)
    images.save_array(tmp_path / "val_images.npy", pixels)
    images.save_array(tmp_path / "val_labels.npy", np.full(4, 3))

    def evaluated(logits):
        return task.evaluate(Table(logits), tmp_path, torch.device("cpu"), 3, tmp_path, "validation")

    rows = [[0, 0, 0, 1], [9, 8, 7, 5, 6], [9, 8, 7, 4, 6, 5], [9, 0, 0, 8]]  # ranks of class 3: 1, 5, 6, 2
    logits = torch.tensor([row + [0.0] * (8 - len(row)) for row in rows])
    found = evaluated(logits)
    assert found.metrics == {"top1": 25.0, "top5": 75.0}
    assert found.stderr["top1"] == pytest.approx(25.0)  # sqrt(3/4 * 1/4 * 4/3 / 4)
    assert found.scores["top1"].tolist() == [1, 0, 0, 0]
    assert found.scores["top5"].tolist() == [1, 1, 0, 1]
    assert found.n_examples == {"top1": 4, "top5": 4}
    logits[3, 0] = math.nan
    for error, wrong in ((NumericalError, logits), (InputError, torch.zeros(4, 3))):
        with pytest.raises(error):
            evaluated(wrong)


# tars and tables


def cifar10(**options):
    return Cifar10(Cifar10Options(**{"classes": 5, "train": 20} | options))


def arrays(task, out, sources):
    task.prepare(out, sources)
    return {file.stem: np.load(file) for file in out.glob("*.npy")}


@pytest.fixture
def tars(tmp_path):
    real_files.images(tmp_path / "cifar10/train.tar", "train", 6)
    real_files.images(tmp_path / "cifar10/test.tar", "test", 4, seed=1)
    return tmp_path


def test_images_and_labels_are_those_of_the_tars(tars, tmp_path):
    found = arrays(cifar10(), tmp_path / "data", tars)
    assert found["train_images"].shape == (20, 32, 32, 3)
    assert found["train_labels"].tolist() == [label for label in range(5) for _ in range(4)]
    image = of_member(tars / "cifar10/test.tar", "test/bee/0002.jpg")
    np.testing.assert_array_equal(found["val_images"][4 + 2], np.asarray(image))
    spread = [of_member(tars / "cifar10/train.tar", f"train/bee/000{number}.jpg") for number in (0, 1, 3, 4)]
    np.testing.assert_array_equal(found["train_images"][4:8], np.stack([np.asarray(image) for image in spread]))
    drawn = cifar10().calibration(tmp_path / "data", 20, 3)
    assert sorted(drawn["indices"]) == list(range(20))
    np.testing.assert_array_equal(drawn["images"], found["train_images"][drawn["indices"]])


def test_the_shortcut_is_a_strided_copy_and_zero_channels():
    block = cifar_resnet.BasicBlock(4, 8, 2).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 4, 8, 8)
    with torch.no_grad():
        out = block(x)
    torch.testing.assert_close(out[:, 2:6], x[:, :, ::2, ::2])
    assert not out[:, [0, 1, 6, 7]].any()


def of_member(path, name):
    with tarfile.open(path) as tar:
        return Image.open(io.BytesIO(tar.extractfile(name).read())).convert("RGB")


def test_photographs_are_central_squares_in_the_index_s_order(tmp_path):
    real_files.samples(tmp_path / "photographs/samples.tar")
    real_files.photographs(tmp_path / "photographs/photographs.tar")
    found = arrays(Photographs(PhotographsOptions(val=2, size=16)), tmp_path / "data", tmp_path)
    assert found["val_labels"].tolist() == [2, 0]
    assert found["train_labels"].tolist() == [0, 1, 2]
    wide, high = of_member(tmp_path / "photographs/photographs.tar", "dataset/images/8.png"), (4, 0, 36, 32)
    expected = np.asarray(wide.crop(high).resize((16, 16), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(found["val_images"][1], expected)
    tall = of_member(tmp_path / "photographs/samples.tar", "n1_a.JPEG")
    expected = np.asarray(tall.crop((0, 4, 32, 36)).resize((16, 16), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(found["train_images"][0], expected)


def test_pixels_are_normalised_for_efficientnet_lite():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    expected = ((torch.from_numpy(pixels).float() - 127) / 128).permute(0, 3, 1, 2)
    found = Photographs(PhotographsOptions()).normalise(pixels, "cpu")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_digits_have_the_same_bytes_everywhere():
    made = digits.make(train=600, validation=150, seed=0)
    assert hashlib.sha256(b"".join(made[name].tobytes() for name in sorted(made))).hexdigest() == DIGITS
    train, validation = digits.split_bases(digits.base_digits()[1], np.random.Generator(np.random.PCG64(0)))
    assert sorted([*train, *validation]) == list(range(1797))
    assert set(made["train_base"]) <= set(train)
    assert set(made["val_base"]) <= set(validation)
