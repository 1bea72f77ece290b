"""Measure the time of an iteration beside plain PyTorch, of the step search, and of fake quantization.

    python bench/speed.py                          # iterations; --rounding adaround: the arithmetic of BRECQ and QDrop
    python bench/speed.py search
    python bench/speed.py kernels --threads 1    # fake quantization of activations beside copying them

Iterations use batch 32 for all units of real torchvision networks at 64 px and one layer of BERT-base at 128 tokens.
A LLaMA layer of hidden size 1024 has batch 2 at 256 tokens. Weights are random; the time does not depend on them.
Plain means forward, backward and Adam on the weights of the same units with one fixed batch. B learns rounded weights
and draws batches from a cache; Q also learns activation steps, mixes inputs and drops quantization. Each figure is wall
seconds, then CPU seconds, which other work on the machine disturbs less. One layer of LLaMA-7B (8 GB) runs only if
named. With ``--device cuda`` iterations are timed together, not one by one. The output then also shows the arithmetic
of plain, the rates, and the peak memory.
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flexround import imports
from flexround.machine import memory, precision
from flexround.models import mobilenetv2, resnet, transformer
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.models.surgery.fold_bn import fold_batch_norm
from flexround.quant.activation import Kept
from flexround.quant.functions import StepQuantize
from flexround.quant.grid import Scheme
from flexround.quant.rounding import Rounding
from flexround.quant.search import initial_grid
from flexround.reconstruct.cache import Batches, Store
from flexround.reconstruct.engine import wait
from flexround.reconstruct.optimise import ReconstructionError
from flexround.settings.load import load_params

KEEP = 0.5
LLAMA = Scheme(8, symmetric=False, axis=0)  # for weights, as in the paper; other networks use 4 bit symmetric
SCHEMES = {"llama": LLAMA, "llama-7b": LLAMA}
SHAPES = (32, 96, 32, 32), (32, 144, 16, 16), (32, 384, 4, 4)  # activations of a MobileNetV2
HEAVY = {"llama-7b"}  # not run unless named
Draw = Callable[[], tuple[Tensor, Tensor, Tensor | None]]


def images(size: int, batch: int) -> Tensor:
    """Return random images for four batches."""
    return torch.randn(4 * batch, 3, size, size, generator=torch.Generator().manual_seed(0))


def tokens(length: int, batch: int) -> Tensor:
    """Return random token ids with type 0 for four batches."""
    ids = torch.randint(30_000, (4 * batch, 1, length), generator=torch.Generator().manual_seed(0))
    return torch.cat([ids, torch.zeros_like(ids)], dim=1)


def folded(factory: Callable[[], nn.Module]) -> nn.Module:
    """Return a network with its batch norms folded."""
    model = factory().eval()
    fold_batch_norm(model)
    return model


def llama_layer(hidden: int, intermediate: int, heads: int) -> nn.Module:
    """Return a LLaMA with one layer."""
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_attention_heads": heads}
    sizes |= {"vocab_size": 64}  # plain training would learn the embedding too
    return transformer.llama("causal-lm", num_hidden_layers=1, **sizes)


class Network(NamedTuple):
    """A network, the function that cuts it, the pixels per side or tokens per row, and the rows of a batch."""

    factory: Callable[[], nn.Module]
    cut: Callable[[nn.Module], list[Block]]
    inputs: Callable[[int, int], Tensor]
    size: int
    batch: int


NETWORKS = {
    "resnet18": Network(lambda: folded(resnet.resnet18), resnet.blocks, images, 64, 32),
    "resnet50": Network(lambda: folded(resnet.resnet50), resnet.blocks, images, 64, 32),
    "mobilenetv2": Network(lambda: folded(mobilenetv2.mobilenet_v2), mobilenetv2.blocks, images, 64, 32),
    # all twelve layers are equal
    "bert-base": Network(
        lambda: transformer.bert("classification", num_hidden_layers=1), transformer.bert_blocks, tokens, 128, 32
    ),
    # the size at which the authors' code was timed
    "llama": Network(
        lambda: llama_layer(1024, 2816, 16), transformer.llama_blocks, lambda *sizes: tokens(*sizes) % 64, 256, 2
    ),
    "llama-7b": Network(
        lambda: llama_layer(4096, 11008, 32), transformer.llama_blocks, lambda *sizes: tokens(*sizes) % 64, 16, 1
    ),
}


def measure(step: Callable[[], None], repeats: int, device: torch.device) -> Tensor:
    """Return wall and CPU seconds of a call, shape (2,): the median, or the mean on an asynchronous GPU."""
    for _ in range(3):
        step()
    at_once = repeats if device.type == "cuda" else 1
    times = []
    for _ in range(repeats // at_once):
        wait(device)
        start = time.perf_counter(), time.process_time()
        for _ in range(at_once):
            step()
        wait(device)
        times.append([time.perf_counter() - start[0], time.process_time() - start[1]])
    return torch.tensor(times).median(dim=0).values / at_once


def stepper(block: Block, draw: Draw, parameters: Sequence[nn.Parameter], kind: torch.dtype) -> Callable[[], None]:
    """Return the function for one iteration: batch, forward, reconstruction error, backward, Adam."""
    adam = torch.optim.Adam(parameters, fused=True)

    def step() -> None:
        adam.zero_grad(set_to_none=True)
        x, target, mask = draw()
        with precision.autocast(kind, x.device):
            prediction = block(x, mask)
        ReconstructionError(2.0)(prediction.float(), target).backward()
        adam.step()

    return step


def quantize_weights(
    block: Block, rounding: Callable[..., Rounding], scheme: Scheme, fused: bool
) -> list[nn.Parameter]:
    """Put a rounding on each weight of a block; return the learned parameters."""
    block.module.requires_grad_(False)
    learned = []
    for layer in attach.weight_layers(block):
        weight = layer.weight.detach()
        grid = attach.weight_grid(weight, scheme, "minmax", 2.4)
        made = rounding(weight, grid, attach.weight_axes(layer))
        made.fuse(fused)
        attach.attach_rounding(layer, made)
        learned += [parameter for parameter in made.parameters() if parameter.requires_grad]
    return learned


def quantize_activations(block: Block, x: Tensor, batch: int, fused: bool) -> list[nn.Parameter]:
    """Put LSQ steps with dropping at a block's sites; return the steps."""
    for site in block.sites:
        attach.attach_quantizer(site, attach.Observer(Scheme(4), "minmax", 2.4))
    with torch.no_grad():
        block(x[:batch].clone())
    learned = []
    for site in block.sites:
        quantizer = attach.attached_quantizer(site).quantizer
        quantizer.keep_probability, quantizer.generator = KEEP, torch.Generator(x.device).manual_seed(0)
        quantizer.fuse(fused)
        attach.attach_quantizer(site, quantizer)
        learned.append(quantizer.raw_step.requires_grad_(True))
    return learned


def one_batch(x: Tensor, target: Tensor, batch: int) -> Draw:
    """Return a source that always gives the same batch."""
    store = Store(x.device)
    inputs, outputs = store.copy(x[:batch]), store.copy(target[:batch])
    return lambda: (inputs.clone(), outputs, None)  # a block may begin with an in-place operation


def drawn(x: Tensor, target: Tensor, keep: float, batch: int) -> Draw:
    """Return a source of random batches, mixed with probability 1 - ``keep``."""
    rows, masks = torch.Generator().manual_seed(0), torch.Generator(x.device).manual_seed(1)
    return Batches(x, x, target, None, False, batch, keep, replacement=True, rows=rows, masks=masks).draw


def iterations(given: argparse.Namespace) -> None:
    """Print one line per network."""
    rounding = imports.load(load_params("paper").rounding_target(given.rounding))
    device, kind = torch.device(given.device), getattr(torch, given.precision)
    if device.type == "cuda":
        precision.repeatable()  # as every job does
    for name in given.networks:
        network = NETWORKS[name]
        batch, scheme = given.batch or network.batch, SCHEMES.get(name, Scheme(4))
        model = network.factory().to(device)
        totals = {variant: torch.zeros(3) for variant in ("plain", "B", "Q")}  # wall and CPU seconds, peak memory
        store, flop = Store(device), 0
        x = store.copy(network.inputs(given.size or network.size, batch))
        for index, block in enumerate(network.cut(model)):
            with torch.no_grad():
                x = store.copy(block.before(x))
                target = store.copy(block(x.clone()))
            for variant, total in totals.items():
                made = network.cut(copy.deepcopy(model))[index]
                if variant == "plain":
                    learned = [p for p in made.module.parameters() if p.ndim > 1]
                    draw = one_batch(x, target, batch)
                else:
                    learned = quantize_weights(made, rounding, scheme, given.fused)
                    draw = drawn(x, target, KEEP if variant == "Q" else 1.0, batch)
                if variant == "Q":
                    learned += quantize_activations(made, x, batch, given.fused)
                step = stepper(made, draw, learned, kind)
                total[:2] += measure(step, given.repeats, device)
                if device.type == "cuda":
                    total[2] = max(total[2], torch.cuda.max_memory_allocated(device) / 1e9)
                    torch.cuda.reset_peak_memory_stats(device)
                if variant == "plain" and device.type == "cuda":
                    with FlopCounterMode(display=False) as counter:
                        step()
                    flop += counter.get_total_flops()
                del made, learned, draw, step  # two large networks would not fit together
            x = target
        figures = []
        for variant, total in totals.items():
            (wall, cpu, most), (times, cpu_times, _) = total.tolist(), (total / totals["plain"]).tolist()
            figures.append(
                f"{variant} {1e3 * wall:.1f} ms, CPU {1e3 * cpu:.1f} ms = {times:.2f} x, CPU {cpu_times:.2f} x"
                + (f", {flop / wall / 1e12:.1f} TFLOP/s, {most:.1f} GB" if flop else "")
            )
        print(name, *([f"{flop / 1e12:.3f} TFLOP"] if flop else []), *figures, sep="   ", flush=True)


def search(device: torch.device) -> None:
    """Print seconds of the step search for a million weights and for a LLaMA-7B layer."""
    x = (torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)) + 0.3).to(device)
    initial_grid(x, Scheme(8))  # the first call loads libraries
    for bits in (8, 4, 3, 2):
        scheme, start = Scheme(bits, symmetric=False), time.perf_counter()
        initial_grid(x, scheme)
        wait(device)
        seconds = time.perf_counter() - start
        print(f"{bits} bit: {seconds:.3f} s for 1 M weights")
    layer = 4 * [(4096, 4096)] + 2 * [(11008, 4096)] + [(4096, 11008)]
    weights = [0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device) for shape in layer]
    start = time.perf_counter()
    for weight in weights:
        initial_grid(weight, LLAMA)
    wait(device)
    count = sum(weight.numel() for weight in weights) / 1e6
    print(f"8 bit per channel, {count:.0f} M weights: {time.perf_counter() - start:.1f} s")


def kernels(shape: tuple[int, ...], repeats: int) -> None:
    """Print CPU ms of forward and backward with drops: native, by single operations, and of copying x twice."""
    x, grad, step = torch.randn(shape).requires_grad_(), torch.randn(shape), torch.tensor(0.13, requires_grad=True)
    inputs = x, step, -8.0, 7.0, Kept.drawn(x.numel(), KEEP, torch.Generator().manual_seed(0))
    calls: list[Callable[[], object]] = [
        lambda: torch.autograd.grad(StepQuantize.of(*inputs), (x, step), grad),
        lambda: torch.autograd.grad(StepQuantize.apply(*inputs, False), (x, step), grad),
        lambda: (x.detach().clone(), grad.clone()),
    ]
    native, plain, copied = (1e3 * measure(call, repeats, x.device)[1].item() for call in calls)
    print(f"{shape}: native {native:.2f} ms = {native / copied:.2f} x copying twice ({copied:.2f}); plain {plain:.2f}")


def main() -> None:
    """Run the measurement that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="iterations", choices=["iterations", "search", "kernels"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounding", default="flexround", help="of params/recipes.yaml, or MODULE:CLASS")
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, default=[name for name in NETWORKS if name not in HEAVY]
    )
    parser.add_argument("--device", default="cpu", help="of iterations and of the step search")
    parser.add_argument("--size", type=int, help="pixels of a side, or tokens")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--precision", default="float32", help="of the products, by autocast")
    parser.add_argument("--fused", action="store_true", help="compile the fake quantization")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    memory.keep_freed_memory()  # as every stage does
    with precision.without_denormals():
        {
            "iterations": lambda: iterations(given),
            "search": lambda: search(torch.device(given.device)),
            "kernels": lambda: [kernels(shape, given.repeats) for shape in SHAPES],
        }[given.what]()


if __name__ == "__main__":
    main()
