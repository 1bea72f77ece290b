"""Image tasks: preprocessing, layout checks, calibration and metrics."""

import shutil

import image_sets
import numpy as np
import pytest
import torch
from image_sets import build, digits_task, save
from torch import nn
from torchvision import datasets, transforms

from flexround.errors import InputError, NumericalError, SettingsError
from flexround.tasks.images import task as images
from flexround.tasks.images.transforms import draw_box

sources, prepared = image_sets.sources, image_sets.prepared


def test_validation_images_equal_torchvision_s_pipeline(sources, prepared):
    pipeline = transforms.Compose(
        [
            transforms.Resize(40),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    folder = datasets.ImageFolder(sources / "imagenet" / "val", pipeline)
    expected = torch.stack([image for image, _ in folder])
    found = build().normalise(np.load(prepared / "val_images.npy"), "cpu")
    assert found.shape == (6, 3, 32, 32)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert np.load(prepared / "val_labels.npy").tolist() == folder.targets


def test_the_manifest_does_not_say_where_the_images_lie(sources, prepared, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (sources / "imagenet").rename(tmp_path / "elsewhere" / "imagenet")
    build().prepare(tmp_path / "data2", tmp_path / "elsewhere")
    assert (prepared / "manifest.json").read_bytes() == (tmp_path / "data2" / "manifest.json").read_bytes()
    with pytest.raises(InputError, match="no longer there; run the data stage again"):
        build().calibration(prepared, 2, 0)


def test_cmyk_and_grey_images_are_converted(sources, tmp_path):
    val = sources / "imagenet" / "val"
    rng = np.random.default_rng(1)
    save(val / "n01" / "n01_0.JPEG", (50, 50), rng, mode="CMYK")
    save(val / "n01" / "n01_1.JPEG", (50, 50), rng, mode="L")
    build().prepare(tmp_path / "data", sources)
    folder = datasets.ImageFolder(val, transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32)]))
    assert np.array_equal(np.load(tmp_path / "data" / "val_images.npy"), np.stack([np.asarray(i) for i, _ in folder]))


def test_all_unreadable_files_are_listed_together(sources, tmp_path):
    val = sources / "imagenet" / "val"
    truncated, corrupt = val / "n01" / "n01_1.JPEG", val / "n03" / "n03_0.JPEG"
    truncated.write_bytes(truncated.read_bytes()[:300])
    corrupt.write_bytes(b"not a JPEG")
    with pytest.raises(InputError) as caught:
        build().prepare(tmp_path / "data", sources)
    assert str(truncated) in str(caught.value)
    assert str(corrupt) in str(caught.value)
    assert "2 image files can't be read" in str(caught.value)
    assert list((tmp_path / "data").glob("*")) == []


def no_split(root):
    shutil.rmtree(root / "val")


def flat(root):
    for folder in [*(root / "val").iterdir()]:
        for image in folder.iterdir():
            image.rename(root / "val" / image.name)
        folder.rmdir()


def empty_class(root):
    for image in (root / "train/n02").iterdir():
        image.unlink()


def untidy(root):
    shutil.rmtree(root / "val/n02")
    (root / "train/n01/notes.txt").write_text("")
    (root / "train/n01/.hidden").write_text("")
    (root / "train/n03/n03_0.JPEG").unlink()


@pytest.mark.parametrize(
    ("damage", "options", "messages"),
    [
        (shutil.rmtree, {}, ["imagenet: this data set is missing. Put its images there as train/CLASS/IMAGE"]),
        (no_split, {}, ["val: missing; it must hold one folder"]),
        (flat, {}, ["val: 6 files but no class folders; move each image"]),
        (empty_class, {"train_count": None}, ["train: classes without images: n02"]),
        (lambda _: None, {"classes": 1000}, ["3 classes, expected 1000"]),
        (
            untidy,
            {},
            [
                "remove or convert them: n01/notes.txt",
                "val: classes that another split has are missing: n02",
                "train: 11 images, expected 12",
                "val: 4 images, expected 6",
            ],
        ),
    ],
)
def test_all_that_is_wrong_with_the_layout_is_reported_together(sources, tmp_path, damage, options, messages):
    damage(sources / "imagenet")
    with pytest.raises(InputError) as caught:
        build(**options).prepare(tmp_path / "data", sources)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(messages)
    assert all(message in line for line, message in zip(lines, messages, strict=True))


def test_options_are_checked():
    with pytest.raises(SettingsError, match="did you mean 'resize'"):
        build(resise=256)
    with pytest.raises(SettingsError, match="crop=64 is larger than resize=40"):
        build(crop=64)


def test_calibration_is_deterministic_nested_and_follows_the_seed(prepared):
    task = build()
    one, again, fewer, other = (task.calibration(prepared, n, s) for n, s in ((9, 1), (9, 1), (4, 1), (9, 2)))
    assert one["images"].shape == (9, 32, 32, 3)
    assert one["images"].dtype == np.uint8
    assert len(set(one["indices"])) == 9
    for name in ("images", "indices"):
        assert np.array_equal(one[name], again[name])
        assert np.array_equal(one[name][:4], fewer[name])
        assert not np.array_equal(one[name], other[name])


def test_calibration_images_come_from_the_training_files(sources, prepared):
    task = build(train_scale=(1.0, 1.0), train_flip=False)
    folder = datasets.ImageFolder(sources / "imagenet" / "train")
    found = task.calibration(prepared, 12, 0)
    for image, index in zip(found["images"], found["indices"], strict=True):
        means = [np.abs(np.asarray(other.resize((32, 32))) - image.astype(float)).mean() for other, _ in folder]
        assert int(np.argmin(means)) == index


@pytest.mark.parametrize("samples", [0, 13])
def test_an_impossible_number_of_samples_is_refused(prepared, samples):
    with pytest.raises(InputError, match=f"samples={samples}: choose from 1 to 12"):
        build().calibration(prepared, samples, 0)


def test_random_boxes_have_torchvision_s_areas():
    rng = np.random.default_rng(0)
    boxes = np.array([draw_box(500, 375, (0.08, 1.0), rng) for _ in range(4000)])
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


class Table(nn.Module):
    """Looks the logits up by the first pixel's red value."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x):
        return self.logits[(x[:, 0, 0, 0] * 255).round().long()]


@pytest.fixture
def numbered(tmp_path):
    """Return prepared data of four images whose first red value is their number, all of class 3."""
    pixels = np.zeros((4, 2, 2, 3), np.uint8)
    pixels[:, 0, 0, 0] = range(4)
    images.save_array(tmp_path / "val_images.npy", pixels)
    images.save_array(tmp_path / "val_labels.npy", np.full(4, 3))
    images.write_manifest(tmp_path, ["val_images.npy", "val_labels.npy"])
    return tmp_path


def test_top1_top5_and_standard_errors(numbered):
    logits = torch.zeros(4, 8)
    logits[0, 3] = 1.0  # first
    logits[1] = torch.tensor([9.0, 8, 7, 5, 6, 0, 0, 0])  # fifth
    logits[2] = torch.tensor([9.0, 8, 7, 4, 6, 5, 0, 0])  # sixth
    logits[3] = torch.tensor([9.0, 0, 0, 8, 0, 0, 0, 0])  # second
    found = digits_task().evaluate(Table(logits), numbered, torch.device("cpu"), 3, numbered, "validation")
    assert found.metrics == {"top1": 25.0, "top5": 75.0}
    assert found.stderr["top1"] == pytest.approx(25.0)  # sqrt(3/4 * 1/4 * 4/3 / 4)
    assert found.scores["top1"].tolist() == [1, 0, 0, 0]
    assert found.scores["top5"].tolist() == [1, 1, 0, 1]
    assert found.n_examples == {"top1": 4, "top5": 4}
    assert found.higher_is_better == {"top1": True, "top5": True}


def test_nan_and_too_few_outputs_are_refused(numbered):
    bad = torch.zeros(4, 8)
    bad[2, 0] = float("nan")
    with pytest.raises(NumericalError, match="validation images 2 to 3"):
        digits_task().evaluate(Table(bad), numbered, torch.device("cpu"), 2, numbered, "validation")
    with pytest.raises(InputError, match="3 outputs, but the data has class 3"):
        digits_task().evaluate(Table(torch.zeros(4, 3)), numbered, torch.device("cpu"), 2, numbered, "validation")
