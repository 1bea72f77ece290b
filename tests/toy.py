"""A four-block network small enough for tests of the engine, and its settings."""

import copy
import functools
import tempfile
from pathlib import Path

import torch
from torch import nn

from flexround import imports
from flexround.models.blocks import Block, Site
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction, Resident
from flexround.reconstruct.state import State
from flexround.settings.layout import PARAMS
from flexround.settings.schema import Hyper, Recipe
from flexround.settings.validation import read_yaml

ROUNDINGS = read_yaml(PARAMS / "recipes.yaml")["roundings"]

HYPER = {
    **{"w_scheme": "symmetric", "w_granularity": "tensor", "group_size": 8, "w_init": "mse", "w_init_p": 2.4},
    **{"a_scheme": "symmetric", "a_granularity": "tensor", "a_init": "mse", "a_init_p": 2.4, "a_init_samples": 32},
    **{"stem_bits": 8, "head_bits": 8, "stem_output_bits": "low", "head_input_bits": 8, "reconstruct_stem": True},
    **{"samples": 64, "batch": 16, "replacement": False, "mask_padding": True},
    **{"precision": "float32", "cache_dtype": "float32", "fused": False},
    **{"iters": 20, "lr": 1e-2, "schedule": "cosine", "optimizer": "adam", "loss_p": 2.0},
    **{"reg_weight": 0.0, "reg_warmup": 0.2, "reg_beta_start": 20.0, "reg_beta_end": 2.0},
    **{"a_iters": 10, "a_lr": 3e-3, "a_loss_p": 2.4, "keep_probability": 0.5, "input_keep_probability": 0.5},
}


class Residual(nn.Module):
    """Two convolutions and a shortcut, with in-place operations as torchvision has."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.conv2(self.relu(self.conv1(x)))
        out += x
        return self.relu(out)


class Toy(nn.Module):
    """Stem, ``depth`` residual blocks, classifier."""

    def __init__(self, depth=2, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.act = nn.ReLU()
        self.body = nn.Sequential(*(Residual(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, 5)

    def forward(self, x):
        return self.head(pool(self.body(self.act(self.stem(x)))))


def pool(x):
    return x.mean((2, 3))


def blocks(model):
    stem = Block("stem", nn.Sequential(model.stem, model.act), (Site(model.act, "output"),))
    body = [
        Block(f"body.{i}", block, (Site(block.conv2, "input"), Site(block, "output")))
        for i, block in enumerate(model.body)
    ]
    return [stem, *body, Block("head", model.head, (), before=pool)]


def model(depth=2, channels=8):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Toy(depth, channels).eval()


def samples(count=64, size=8):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def job(recipe, net=None, **hyper):
    own = copy.deepcopy(net or model())
    settings = Hyper.model_validate(HYPER).model_copy(update=hyper)  # also beyond what a scale may set
    return job_of(own, blocks(own), recipe, settings)


def job_of(net, cut, recipe, hyper, weights=None, mask=None):
    """Return the job of quantizing a network in place, which is ``cut`` into blocks."""
    rounding = imports.load(ROUNDINGS.get(recipe.rounding, recipe.rounding))
    weights, device = weights or Resident(cut), torch.device("cpu")
    return Reconstruction(net, cut, weights, recipe, hyper, rounding, ("toy", 0), device, mask)


def recipe(setting="B", rounding="flexround", w_bits=3, a_bits=None, **options):
    return Recipe(setting=setting, rounding=rounding, w_bits=w_bits, a_bits=a_bits, options=options)


def run(job, directory, fingerprint="f" * 16, x=None):
    """Reconstruct; return the result's tensors without the parameters stored as they are, the records and the model."""
    with State(Path(directory) / "run", fingerprint).opened() as state:
        records = reconstruct(job, samples() if x is None else x, state)
        tensors = {key: value for entry in state.entries for key, value in state.part(entry).tensors().items()}
    return {key: value for key, value in tensors.items() if ":" in key}, records, job.model


@functools.cache
def straight(setting="B", rounding="flexround", w_bits=3, a_bits=None):
    """Return the tensors that a run of a recipe finds if nothing interrupts it; each is computed once."""
    with tempfile.TemporaryDirectory() as directory:
        return run(job(recipe(setting, rounding, w_bits, a_bits)), directory)[0]


def same(found, expected):
    """Whether two results have the same tensors, bit for bit."""
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)
