"""Training image classifiers: it learns, repeats itself, and says where it diverged."""

import numpy as np
import pytest
import torch
from image_sets import digits_task
from torch import nn

from flexround.tasks import image_training


def tiny_network():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(1024, 10))


@pytest.fixture(scope="module")
def small_digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits")
    digits_task(train=600, val=200).prepare(path, path)
    return path


RECIPE = {"epochs": 6, "batch": 25, "lr": 0.05, "shift": 1, "label_smoothing": 0.1}


def test_training_learns_and_repeats_itself(small_digits):
    results = []
    for seed in (0, 0, 1):
        model = tiny_network()
        torch.manual_seed(len(results))
        state = torch.random.get_rng_state()
        facts = digits_task().finetune(model, small_digits, RECIPE | {"epochs": 3, "seed": seed}, small_digits)
        assert torch.equal(torch.random.get_rng_state(), state)
        results.append((facts, model[-1].weight))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][1], results[2][1])
    assert results[0][0]["train_accuracy"] > 20.0


def test_shift_keeps_content():
    pixels = np.arange(2 * 6 * 6 * 3, dtype=np.uint8).reshape(2, 6, 6, 3)
    shifted = image_training.shifted(pixels, 2, np.random.default_rng(3))
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    for image, source in zip(shifted, padded, strict=True):
        windows = [source[y : y + 6, x : x + 6] for y in range(5) for x in range(5)]
        assert any(np.array_equal(image, window) for window in windows)


def test_learning_rates():
    settings = image_training.FinetuneSettings(epochs=5, lr=1.0, warmup=1.0)
    assert image_training.learning_rate(settings, 0.5) == pytest.approx(0.5, abs=2e-3)
    assert image_training.learning_rate(settings, 3.0) == pytest.approx(0.5)
    step = image_training.FinetuneSettings(epochs=5, lr=1.0, schedule="step", milestones=(2, 4))
    assert [image_training.learning_rate(step, e) for e in (1.9, 2.0, 4.5)] == pytest.approx([1.0, 0.1, 0.01])
