"""Small random networks of the package's own architectures, and inputs for them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torchvision
from torch import Tensor, nn

from flexround.mini import models
from flexround.mini.models import NarrowResNet
from flexround.models import gpt2, resnet, transformer
from flexround.models.blocks import Block
from flexround.seeding import derive
from flexround.surgery import preprocess

RELATIVE = 2.0**-20  # size of the changes of a variant


class Network(NamedTuple):
    """A network in full precision, how it is cut into blocks, and 64 inputs of its first one."""

    model: nn.Module
    cut: Callable[[Any], list[Block]]
    samples: Tensor


def generator(*seed: int) -> torch.Generator:
    """Return a generator of its own."""
    return torch.Generator().manual_seed(derive(*seed))


@torch.no_grad()
def vary(model: nn.Module, variant: int) -> nn.Module:
    """Change all weights by some millionths; nothing in variant 0."""
    for number, weight in enumerate(model.parameters()):
        if variant:
            weight.mul_(1 + RELATIVE * torch.randn(weight.shape, generator=generator(variant, number)))
    return model


def normal(*shape: int, seed: int) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=generator(seed))


@torch.no_grad()
def trained(model: nn.Module) -> nn.Module:
    """Give batch norms weights, biases and statistics as after training, so that folding them changes the weights."""
    random = generator(3)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.weight.uniform_(0.3, 1.5, generator=random)
        norm.bias.normal_(0.2, 0.3, generator=random)
        norm.momentum = 1.0
    model.train()(normal(32, 3, 32, 32, seed=4))
    return model.eval()


def convolutional(variant: int) -> Network:
    """Return a ResNet of six blocks, batch norms folded."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        model = NarrowResNet(torchvision.models.resnet.BasicBlock, (1, 1, 1, 1), 4, 10)
    vary(trained(model), variant)
    preprocess.prepare(model, [])
    return Network(model, resnet.blocks, normal(64, 3, 16, 16, seed=5))


def transposed(variant: int) -> Network:
    """Return a GPT-2 of two layers, whose linears are ``Conv1D`` with transposed weights."""
    sizes = {"vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 24}
    model = transformer.gpt2("causal-lm", **sizes, initializer_range=0.3, bos_token_id=0, eos_token_id=0)
    ids = torch.randint(60, (64, 16), generator=generator(6))
    return Network(vary(model, variant), gpt2.blocks, torch.stack([ids, torch.zeros_like(ids)], dim=1))


def separable(variant: int) -> nn.Module:
    """Return a MobileNetV2 with batch norms."""
    return vary(trained(models.mobilenetv2(0.1, dropout=0.0)), variant)
