"""Quantizers of activations: dropping, and the grid of each token: its formula, its gradient, how it is stored."""

import pytest
import torch
import toy
from test_text_blocks import batch, cut, make

from flexround.quant.activation import ActivationQuantizer, Kept, TokenQuantizer
from flexround.quant.grid import MIN_STEP, Grid, Scheme
from flexround.reconstruct.codes import apply
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.state import State
from flexround.settings.schema import Hyper

ASYMMETRIC = Scheme(8, symmetric=False)
X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.01, 1, 1, 7, 300])[:, None]


def test_the_step_is_positive_whatever_the_parameter():
    quantizer = ActivationQuantizer(Grid(torch.tensor(0.1), torch.tensor(0.0), 0, 15))
    for value in (-0.3, 0.0, 1e-20, 5.0):
        quantizer.raw_step.data.fill_(value)
        assert quantizer.step().item() == pytest.approx(max(abs(value), MIN_STEP))
        assert quantizer.step() > 0
        assert torch.isfinite(quantizer(torch.ones(3))).all()
    for kind in (torch.float16, torch.bfloat16):
        quantizer.to(kind).raw_step.data.zero_()
        assert torch.isfinite(quantizer(torch.arange(3, dtype=kind))).all(), kind


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.999])
def test_dropping_keeps_values_with_the_given_probability(probability):
    quantizer = ActivationQuantizer(Grid(torch.tensor(1.0), torch.tensor(0.0), -8, 7))
    quantizer.keep_probability, quantizer.generator = probability, torch.Generator().manual_seed(0)
    out = quantizer(torch.full((200, 500), 0.4, requires_grad=True)).detach()
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 0.4])
    assert (out == 0).float().mean().item() == pytest.approx(probability, abs=0.01)


def keep_mask(like, probability, generator, kind):
    return Kept.drawn(like.numel(), probability, generator).mask(like, kind)


def largest_correlation(rows):
    return torch.corrcoef(rows)[~torch.eye(len(rows), dtype=torch.bool)].abs().max()


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.7])
def test_a_mask_has_independent_elements_of_its_generator(probability):
    image = torch.empty(16, 6, 9, 11).contiguous(memory_format=torch.channels_last)
    masks = []
    for noise, kind in enumerate((image.dtype, torch.uint8)):
        torch.manual_seed(noise)
        masks.append(keep_mask(image, probability, torch.Generator().manual_seed(1), kind))
        assert masks[-1].dtype == kind
        assert masks[-1].stride() == image.stride()
    assert torch.equal(*(mask.float() for mask in masks))
    assert masks[0].unique().tolist() == [0, 1]
    rows = keep_mask(torch.empty(64, 4096), probability, torch.Generator().manual_seed(2), torch.float32)
    assert largest_correlation(rows) < 0.08, "neighbouring bytes of a word must be independent"
    draws = [
        keep_mask(torch.empty(24), probability, torch.Generator().manual_seed(s), torch.float32) for s in range(3000)
    ]
    elements = torch.stack(draws).T
    assert largest_correlation(elements) < 0.1, "elements that share a random byte must be independent"
    assert (elements.mean(1) - probability).abs().max() < 0.05


# a grid for each token


def by_hand(x, levels=255):
    """Quantize a vector from its least value (at most 0) to its largest one (at least 0)."""
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    step = (high - low) / levels
    zero = min(max(-round(low / step), 0), levels)
    return torch.tensor([(min(max(round(v / step) + zero, 0), levels) - zero) * step for v in x.tolist()])


def test_each_token_has_the_range_of_its_own_values():
    found = TokenQuantizer(ASYMMETRIC)(X)
    for row in range(3):
        for token in range(5):
            torch.testing.assert_close(found[row, token], by_hand(X[row, token].double()).float(), rtol=1e-4, atol=1e-6)
    assert torch.equal(TokenQuantizer(ASYMMETRIC)(torch.zeros(2, 4)), torch.zeros(2, 4))


def test_the_gradient_passes_and_dropped_values_are_exact():
    quantizer, x = TokenQuantizer(Scheme(2, symmetric=False)), X.clone().requires_grad_()
    whole = quantizer(X)
    quantizer.keep_probability, quantizer.generator = 0.5, torch.Generator().manual_seed(0)
    found = quantizer(x)
    found.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    dropped = found == X
    assert 0.3 < dropped.float().mean() < 0.7
    torch.testing.assert_close(found[~dropped], whole[~dropped])


@pytest.mark.parametrize(("setting", "rounding"), [("B", "flexround"), ("Q", "flexround"), ("Q", "rtn")])
def test_a_network_with_token_grids_learns_and_is_read_again(tmp_path, setting, rounding):
    x, mask = batch()
    model, fresh = make("llama"), make("llama")
    blocks, again = cut(model), cut(fresh)
    settings = {"a_granularity": "token", "a_scheme": "asymmetric", "samples": len(x), "batch": 2, "iters": 3}
    settings |= {"a_init_samples": 2, "a_iters": 3, "head_input_bits": "low"}
    hyper, recipe = Hyper.model_validate(toy.HYPER | settings), toy.recipe(setting, rounding, a_bits=8)
    with State(tmp_path / "run", "f" * 16).opened() as state:
        records = reconstruct(toy.job_of(model, blocks, recipe, hyper, mask=mask), x, state)
        for entry in state.entries:
            apply(state.part(entry).quantized, fresh, again, torch.device("cpu"))
    assert all("loss_before" not in record for record in records if record["phase"] == "steps"), "nothing is learned"
    kinds = {type(module) for module in fresh.modules() if isinstance(module, ActivationQuantizer)}
    assert kinds == {TokenQuantizer}
    for block, other in zip(blocks, again, strict=True):
        x = block.before(x)
        assert torch.equal(block(x, mask), other(x, mask))
        x = block(x, mask)
