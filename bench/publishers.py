"""GPTQ, LRQ and SignRound beside their publishers' code, on one layer with correlated inputs.

Ours and theirs begin at the same grid and see the same rows in the same order. What isn't given is not compared:

    python bench/publishers.py --gptq DIR --lrq DIR --auto-round DIR

GPTQ: a folder with ``gptq.py`` and ``quant.py`` of IST-DASLab/gptq. LRQ: a folder with ``UniformAffineQuantizer.py`` of
onliwad101/FlexRound_LRQ. SignRound: the site-packages into which auto-round and what it imports were installed.
"""

import argparse
import functools
import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from exhaustive_search import exhaustive
from torch import Tensor, nn

from flexround.quant.gptq import GPTQ
from flexround.quant.grid import Grid, Scheme, clip, nearest_codes
from flexround.quant.lrq import LRQ
from flexround.quant.rounding import Axes
from flexround.quant.search import initial_grid
from flexround.quant.signround import SignRound
from flexround.reconstruct.inputs import unfolded
from flexround.reconstruct.optimise import ParameterGroup, ReconstructionError, optimise

SIZE, ROWS, BATCH, ITERATIONS, SEEDS = 64, 1024, 32, 200, 5
AXES = Axes(0)


def linear(seed: int) -> tuple[Tensor, Tensor]:
    """Return a weight (64, 64) with some large columns, and correlated inputs (1024, 64)."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(SIZE, SIZE, generator=generator) * 0.1
    weight[:, ::16] *= 4
    mixing = torch.randn(SIZE, SIZE, generator=generator) / SIZE**0.5 + torch.eye(SIZE)
    return weight, torch.randn(ROWS, SIZE, generator=generator) @ mixing


class Rows:
    """Batches of (input, target) for ``optimise``, the same each time they are made."""

    def __init__(self, x: Tensor, target: Tensor) -> None:
        self.x, self.target, self.masks = x, target, torch.Generator().manual_seed(1)

    def draw(self) -> tuple[Tensor, Tensor, None]:
        """Return 32 rows."""
        index = torch.randperm(len(self.x), generator=self.masks)[:BATCH]
        return self.x[index], self.target[index], None


def learn(
    quantized: Callable[[], Tensor], groups: Sequence[ParameterGroup], weight: Tensor, x: Tensor, optimizer: str
) -> Tensor:
    """Minimise the error of a linear layer's output in the engine's own loop; return the final weight."""
    rows: Any = Rows(x, x @ weight.T)
    block = lambda inputs, _: inputs @ quantized().T  # noqa: E731
    optimise(block, rows, groups, ITERATIONS, ReconstructionError(2.0), "layer", optimizer=optimizer)
    return quantized().detach()


def report(what: str, ours: Tensor, theirs: Tensor, grid: Grid, weight: Tensor, x: Tensor) -> None:
    """Print how many weights are equal and both errors of the output, in parts of round-to-nearest's."""
    tried = (nearest_codes(weight, grid) * grid.step, ours, theirs)
    before, here, there = (((x @ (each - weight).flatten(1).T).square().sum()).item() for each in tried)
    equal = 100 * torch.isclose(ours, theirs, rtol=1e-4, atol=1e-6).float().mean().item()
    print(f"{what}: {equal:.2f} % of the weights equal; error / RTN's {here / before:.4f}, theirs {there / before:.4f}")


def report_gradients(what: str, ours: dict[Tensor, Tensor], weights: Sequence[Tensor], x: Tensor) -> None:
    """Print the largest difference of gradients in parts of the largest gradient, of parameters paired by ``ours``."""
    upstream = torch.randn(weights[0].shape, generator=torch.Generator().manual_seed(2)) @ (x.T @ x)
    mine = torch.autograd.grad(weights[0], list(ours), upstream)
    there = torch.autograd.grad(weights[1], list(ours.values()), upstream)
    worst = max(((a.view_as(b) - b).abs().max() / b.abs().max()).item() for a, b in zip(mine, there, strict=True))
    print(f"{what}: gradients differ by {worst:.1e} of the largest at most")


def gptq(directory: Path) -> None:
    """GPTQ's algorithm; its code ends with a wait for a GPU, which is left out."""
    sys.path.insert(0, str(directory))
    published = importlib.import_module("gptq")
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    for name, layer, shape in (
        ("linear", nn.Linear(SIZE, SIZE), None),
        ("convolution", nn.Conv2d(8, 16, 3, padding=1, stride=2), (ROWS // 16, 8, 12, 12)),
    ):
        for bits, axis, act_order in ((4, 0, False), (3, 0, False), (3, 0, True), (2, None, False)):
            weight, x = linear(bits)
            if shape:
                weight = weight.flatten()[: layer.weight.numel()].view_as(layer.weight)
                x = torch.randn(shape, generator=torch.Generator().manual_seed(bits)).cumsum(2)
            layer.weight.data.copy_(weight)
            grid = initial_grid(weight, Scheme(bits, symmetric=False, axis=axis))
            theirs = published.GPTQ(layer)
            theirs.quantizer = published.Quantizer()
            theirs.quantizer.configure(bits, perchannel=True, sym=False)
            outputs = len(weight)
            theirs.quantizer.scale = grid.step.reshape(-1, 1).expand(outputs, 1)
            theirs.quantizer.zero = grid.zero_point.reshape(-1, 1).expand(outputs, 1)
            theirs.add_batch(x, None)
            theirs.fasterquant(actorder=act_order)
            ours = GPTQ(weight, grid, Axes(0, 1) if shape else AXES, act_order=act_order)
            rows = unfolded(layer, x)
            ours.fit(weight, rows.split(BATCH, 1))
            what = f"GPTQ {name} W{bits} {'per channel' if axis == 0 else 'per tensor'}{' act-order' * act_order}"
            report(what, ours(weight), layer.weight.data, grid, weight, rows[0])


def old_clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Stand in for ``torch.clamp``, with gradient 1 *at* a bound as when the methods were published: 2.15 has 0."""
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    return clip(x, *(torch.as_tensor(bound).to(x) for bound in (low, high)))


def lrq(directory: Path) -> None:
    """LRQ's quantizer; the release takes the rank of a small square layer from its side, so that is ours here too."""
    sys.path.insert(0, str(directory))
    published = importlib.import_module("UniformAffineQuantizer").UniformAffineQuantizer
    torch.clamp = old_clamp  # type: ignore[assignment]
    for bits, seed in itertools.product((4, 3), range(SEEDS)):
        weight, x = linear(seed)
        theirs = published(bits, channel_wise=True, mode="lrq", org_weight=weight)
        grid = Grid(theirs.delta, theirs.zero_point, 0, 2**bits - 1)
        own, _ = exhaustive(weight, bits, symmetric=False, p=2.4)
        ours = LRQ(weight, grid, AXES, rank=SIZE)
        ours.right.data.copy_(theirs.delta3.data)
        pairs = {ours.d1: theirs.delta1, ours.left: theirs.delta2, ours.right: theirs.delta3}
        pairs |= {ours.row: theirs.delta4, ours.column: theirs.delta5}
        for mine, there in pairs.items():  # gradients are compared away from the start, where some are 0
            there.data.add_(torch.randn(there.shape, generator=torch.Generator().manual_seed(seed)) * 0.05)
            mine.data.copy_(there.data)
        ours.d1.data.sub_(grid.step.log())  # theirs is ln s1
        same = torch.isclose(own, grid.step.flatten().double(), rtol=1e-5).float().mean().item()
        what = f"LRQ W{bits} seed {seed}"
        report_gradients(f"{what}, {100 * same:.0f} % of the steps equal", pairs, [ours(weight), theirs(weight)], x)
        results = []
        for module in (ours, theirs):
            groups = [ParameterGroup(list(module.parameters()), 3e-3, "cosine")]
            results.append(learn(functools.partial(module, weight), groups, weight, x, "adam"))
        report(what, *results, grid, weight, x)


def signround(directory: Path) -> None:
    """auto-round's wrapper, its optimizer and its schedule; with a fixed range and with a learned one.

    A learned range begins at the minimum and maximum there, at the ends of the grid here: once so, and once theirs is
    made to begin where ours does, and ours to end where theirs does.
    """
    sys.path.append(str(directory))
    wrapper = importlib.import_module("auto_round.wrapper").WrapperLinear
    descent = importlib.import_module("auto_round.algorithms.quantization.sign_round.sign_sgd").SignSGD
    torch.clamp = old_clamp  # type: ignore[assignment]
    for bits, how, seed in itertools.product((4, 3), ("fixed", "learned", "learned, aligned"), range(SEEDS)):
        learned = how != "fixed"
        weight, x = linear(seed)
        layer = nn.Linear(SIZE, SIZE, bias=False)
        layer.weight.data.copy_(weight)
        settings = {"bits": bits, "act_bits": 16, "group_size": -1, "sym": False, "data_type": "int"}
        for key, value in (settings | {"scale_dtype": torch.float32}).items():
            setattr(layer, key, value)
        theirs = wrapper(layer, enable_minmax_tuning=learned, enable_torch_compile=False)
        grid = initial_grid(weight, Scheme(bits, symmetric=False, axis=0), "minmax")
        ours = SignRound(weight, grid, AXES)
        if how.endswith("aligned"):
            theirs.weight_min, theirs.weight_max = ((bound * grid.step).flatten() for bound in grid.bounds)
            ours.largest.fill_(1)
        what = f"SignRound W{bits} range {how} seed {seed}"
        report_gradients(what, {ours.v: theirs.value}, [ours(weight), _theirs(theirs)], x)
        rate = 1 / ITERATIONS
        groups = [ParameterGroup([ours.v], rate, "linear")] + [ParameterGroup([ours.ends], rate, "linear")] * learned
        mine = learn(functools.partial(ours, weight), groups, weight, x, "sign")
        report(what, mine, _learn_theirs(theirs, descent, weight, x), grid, weight, x)


def _learn_theirs(theirs: Any, descent: Callable[..., Any], weight: Tensor, x: Tensor) -> Tensor:
    """Learn auto-round's parameters with its own optimizer on our rows; return the final weight."""
    optimizer = descent(theirs.params.values(), lr=1 / ITERATIONS, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, ITERATIONS)
    rows = Rows(x, x @ weight.T)
    for _ in range(ITERATIONS):
        inputs, target, _ = rows.draw()
        optimizer.zero_grad()
        nn.functional.mse_loss(inputs @ _theirs(theirs).T, target).backward()
        optimizer.step()
        schedule.step()
    return _theirs(theirs).detach()


def _theirs(wrapped: Any) -> Tensor:
    """Return the weight of auto-round's wrapper as it is now."""
    return wrapped._qdq_weight(wrapped.value, wrapped.min_scale, wrapped.max_scale)[0]


def main(arguments: Iterable[str] | None = None) -> None:
    """Run what is at hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compared = {"gptq": gptq, "lrq": lrq, "auto_round": signround}
    for name in compared:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path)
    given = vars(parser.parse_args(arguments))  # type: ignore[arg-type]
    torch.set_num_threads(1)
    for name, compare in compared.items():
        if given[name]:
            compare(given[name])
        else:
            print(f"{name}: not compared, its code was not given")


if __name__ == "__main__":
    main()
