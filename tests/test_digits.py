"""The offline image set: same bytes everywhere, splits that share no base digit, all classes."""

import hashlib

import numpy as np
import pytest

from flexround.mini import digits

SHA256 = "cbf23142bb8ba48fc9a5a3770bf18064f13ae70cddc0a2728999e73f9ae3ab5c"


@pytest.fixture(scope="module")
def made():
    return digits.make(train=1500, validation=700, seed=0)


def test_the_bytes_are_the_same_on_every_machine(made):
    found = hashlib.sha256(b"".join(made[name].tobytes() for name in sorted(made))).hexdigest()
    assert found == SHA256


def test_counts_shapes_and_types(made):
    assert made["train_images"].shape == (1500, 32, 32, 3)
    assert made["val_images"].shape == (700, 32, 32, 3)
    assert made["train_images"].dtype == made["val_images"].dtype == np.uint8
    for split in ("train", "val"):
        assert len(made[f"{split}_labels"]) == len(made[f"{split}_images"])
        assert np.bincount(made[f"{split}_labels"]).min() > 0.07 * len(made[f"{split}_labels"])


def test_no_base_digit_is_in_both_splits(made):
    assert not set(made["train_base"]) & set(made["val_base"])
    assert len(set(made["train_base"])) + len(set(made["val_base"])) == 1797


def test_labels_are_those_of_the_base_digits(made):
    labels = digits.base_digits()[1]
    assert np.array_equal(made["train_labels"], labels[made["train_base"]])


def test_images_of_one_base_digit_differ(made):
    base = made["val_base"]
    first, second = np.flatnonzero(base == base[0])[:2]
    assert not np.array_equal(made["val_images"][first], made["val_images"][second])


def test_the_seed_decides_the_images():
    one, other = (digits.make(train=20, validation=20, seed=seed) for seed in (1, 2))
    assert not np.array_equal(one["val_images"], other["val_images"])


def test_warp_moves_a_point_by_the_shift():
    image = np.zeros((1, 32, 32))
    image[0, 10, 12] = 1.0
    moved = digits.warp(image, np.zeros(1), np.zeros(1), np.ones((1, 2)), np.array([[3.0, -2.0]]))
    assert np.unravel_index(moved[0].argmax(), (32, 32)) == (13, 10)


def test_paint_lightens_by_the_contrast():
    rng = np.random.default_rng(0)
    image = np.full((2, 32, 32, 3), 0.2)
    painted = digits.paint(image, np.ones((2, 32, 32)), np.array([0.3, 0.5]), rng)
    assert np.allclose(painted.mean(axis=(1, 2, 3)), [0.5, 0.7])
