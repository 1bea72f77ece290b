"""What roundings that look before they learn are shown."""

import dataclasses

import pytest
import torch
import toy
from tensors import randn
from torch import nn
from transformers.pytorch_utils import Conv1D

from flexround.models.efficientnet_lite import SameConv2d
from flexround.models.surgery import attach
from flexround.quant.rtn import RTN
from flexround.reconstruct.inputs import LayerInputs, unfolded

LAYERS = {
    "linear": (nn.Linear(6, 5), (4, 3, 6)),
    "conv1d": (Conv1D(5, 6), (4, 3, 6)),
    "conv": (nn.Conv2d(6, 5, 3, padding=1), (4, 6, 7, 9)),
    "one image": (nn.Conv2d(6, 5, 3), (6, 7, 9)),
    "stride": (nn.Conv2d(6, 5, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (4, 6, 7, 9)),
    "grouped": (nn.Conv2d(6, 4, 3, groups=2), (4, 6, 7, 9)),
    "depthwise": (nn.Conv2d(6, 12, 3, groups=6, padding="same"), (4, 6, 7, 9)),
    "same": (SameConv2d(6, 12, 5, 2, groups=6), (4, 6, 8, 10)),
    "reflect": (nn.Conv2d(6, 4, 5, padding=2, padding_mode="reflect"), (4, 6, 7, 9)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_times_weight_are_the_layers_output(kind):
    layer, shape = LAYERS[kind]
    x, axes = randn(*shape), attach.weight_axes(layer)
    rows = unfolded(layer, x)
    weight = layer.weight.transpose(0, axes.output).flatten(1).unflatten(0, (len(rows), -1))
    products = torch.einsum("gnf,gof->ngo", rows, weight).flatten(1) + (0 if layer.bias is None else layer.bias)
    expected = layer(x)[None] if kind == "one image" else layer(x)
    expected = expected.permute(0, 2, 3, 1) if expected.ndim == 4 and "conv1d" not in kind else expected
    torch.testing.assert_close(products, expected.reshape(products.shape), rtol=1e-4, atol=1e-5)


def test_padded_tokens_are_left_out_if_they_are_masked():
    layer, job = nn.Linear(6, 5), toy.job(toy.recipe())
    block = dataclasses.replace(job.blocks[-1], module=nn.Sequential(layer), call=lambda module, x, mask: module(x))
    x, mask = randn(20, 3, 6), torch.arange(3) < torch.arange(20).remainder(3).unsqueeze(1) + 1
    for masked in (True, False):
        own = dataclasses.replace(job, mask=mask, hyper=job.hyper.model_copy(update={"mask_padding": masked}))
        shown = torch.cat(list(LayerInputs(own, block, layer, x)), 1)[0]
        assert torch.equal(shown, x[mask] if masked else x.flatten(0, 1))
    assert not layer._forward_pre_hooks


class Gated(nn.Module):
    """Two layers read one tensor, a third what they give, a fourth their tensor after it was written on."""

    def __init__(self):
        super().__init__()
        self.value, self.gate, self.out, self.late = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        return self.out(self.value(x) * self.gate(x)) + self.late(x.add_(1))


def test_layers_that_read_one_tensor_share_a_pass():
    net, job, x = Gated(), toy.job(toy.recipe()), torch.randn(64, 6)
    block = dataclasses.replace(job.blocks[-1], module=net, call=lambda module, x, mask: module(x))
    first = LayerInputs(job, block, net.value, x)
    assert not first.serve(net.gate)  # nothing is known before a pass
    assert torch.equal(torch.cat(list(first), 1)[0], x)
    assert [first.serve(layer) for layer in (net.gate, net.out, net.late)] == [True, False, False]
    third = torch.cat(list(LayerInputs(job, block, net.out, x, first)), 1)[0]
    assert torch.equal(third, net.value(x) * net.gate(x))


class Watching(RTN):
    """Remembers what it is shown, and is then a weight of zeros, which the layers behind it must notice."""

    needs_inputs = True
    calls = []

    def fit(self, weight, inputs):
        type(self).calls.append((weight.clone(), torch.cat(list(inputs), 1)))
        self.fitted = True

    def forward(self, weight):
        return weight * 0 if hasattr(self, "fitted") else super().forward(weight)


@pytest.mark.parametrize(("iters", "stem"), [(0, True), (2, False)])
def test_layers_are_shown_inputs_from_fitted_predecessors(tmp_path, iters, stem):
    Watching.calls = []
    recipe = toy.recipe("B", "test_layer_inputs:Watching", 3)
    toy.run(toy.job(recipe, iters=iters, reconstruct_stem=stem), tmp_path)
    net, calls = toy.model(), Watching.calls
    layers = [net.stem] * stem + [conv for body in net.body for conv in (body.conv1, body.conv2)] + [net.head]
    assert len(calls) == len(layers)
    for layer, (weight, rows) in zip(layers, calls, strict=True):
        assert torch.equal(weight, layer.weight)
        assert rows.shape[1] == 64 * (1 if layer is net.head else 8 * 8)
    constant = [net.stem.bias.relu()] * stem + [net.body[0].conv1.bias.relu()]
    for number, bias in zip((1, 2) if stem else (1,), constant, strict=True):  # what is behind a weight of zeros
        x = bias.view(1, -1, 1, 1).expand(64, -1, 8, 8)
        assert torch.equal(calls[number][1], unfolded(layers[number], x))
    if stem:
        assert torch.equal(calls[0][1], unfolded(net.stem, toy.samples()))
