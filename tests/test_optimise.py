"""How parameters move: schedules, schedules by group, signed gradient descent, β of the regulariser."""

import math

import pytest
import torch
import toy
from torch import nn

from flexround.reconstruct import optimise
from flexround.reconstruct.optimise import SCHEDULES, ParameterGroup, Penalty, ReconstructionError


class Rows:
    """Batches of one row whose target is out of reach, so that the gradient of a weight is always negative."""

    masks = torch.Generator()

    def draw(self):
        return torch.ones(1, 1), torch.full((1, 1), 1e6), None


def moved(groups, iterations, optimizer):
    """Learn a sum of weights; return the weights after each iteration."""
    seen = []

    def block(x, mask):
        seen.append([parameter.item() for group in groups for parameter in group.parameters])
        return x * sum(parameter for group in groups for parameter in group.parameters)

    optimise.optimise(block, Rows(), groups, iterations, ReconstructionError(2), "toy", optimizer=optimizer)
    return [*seen, [parameter.item() for group in groups for parameter in group.parameters]]


@pytest.mark.parametrize("optimizer", ["adam", "sign"])
def test_each_group_follows_its_schedule(optimizer):
    """Adam's steps are as long as the rate while the gradient hardly changes, those of the sign exactly so."""
    rate, count = 0.1, 8
    groups = [ParameterGroup([nn.Parameter(torch.zeros(()))], rate, name) for name in SCHEDULES]
    found = torch.tensor(moved(groups, count, optimizer)).diff(dim=0)
    expected = torch.tensor(
        [[rate, rate * 0.5 * (1 + math.cos(math.pi * i / count)), rate * (1 - i / count)] for i in range(count)]
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_sign_moves_large_and_small_gradients_alike():
    large, zero, absent = (nn.Parameter(torch.ones(2)) for _ in range(3))
    large.grad, zero.grad = torch.tensor([1e9, -1e-9]), torch.zeros(2)
    optimise.SignDescent([{"params": [large, zero, absent], "lr": 0.25}]).step()
    assert large.tolist() == [0.75, 1.25]
    assert zero.tolist() == absent.tolist() == [1, 1]


def test_schedules_of_groups_reach_the_parameters(tmp_path):
    recipe, lr = toy.recipe(rounding="adaquant"), {"v": 3e-3, "s1": 3e-3}
    schedules = "linear", {"v": "linear", "s1": "linear"}, {"v": "none", "s1": "linear"}
    one, alike, mixed = (toy.run(toy.job(recipe, lr=lr, schedule=each, iters=5), tmp_path)[0] for each in schedules)
    assert toy.same(one, alike)
    assert not toy.same(one, mixed)


def test_the_optimizer_of_the_settings_is_used(tmp_path):
    """Rates of 1/2 with the sign: each ln s1 ends a whole number of halves from where it began."""
    settings = {"lr": 0.5, "schedule": "none", "optimizer": "sign", "iters": 5}
    tensors = toy.run(toy.job(toy.recipe(rounding="adaquant"), **settings), tmp_path)[0]
    for key in [key for key in tensors if key.endswith(":initial_step")]:
        ratio = (tensors[key.replace("initial_step", "step")] / tensors[key]).log()
        torch.testing.assert_close(ratio * 2, (ratio * 2).round(), rtol=0, atol=1e-4)
        assert ratio != 0


def test_the_penalty_starts_after_warm_up_and_beta_falls():
    """What is added here is λ β."""
    penalty = Penalty([torch.tensor, lambda _: None], 0.5, 0.2, 20, 2)
    added = [penalty.added(torch.zeros(()), progress).item() for progress in (0.19, 0.2, 0.6, 1 - 1e-9)]
    assert added == pytest.approx([0, 10, 5.5, 1])
