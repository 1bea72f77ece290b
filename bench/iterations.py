"""Seconds per reconstruction iteration, summed over a network's units, against plain forward + backward + Adam.

The real torchvision networks at 64 px and one layer of BERT-base at 128 tokens, batch 32, and one LLaMA layer of hidden
size 1024 at 256 tokens, batch 2; random weights (the time does not depend on them). Both kinds of reconstruction draw
their batches from a cache, Q mixes and drops; plain training has its one batch for nothing. One layer of LLaMA-7B is
run where it is named only (8 GB); ``--tokens``, ``--precision`` and ``--fused`` are for it, but work for all.

Each figure is wall seconds, then CPU seconds, which other work on the machine disturbs less; with ``--operations`` also
what the host starts in an iteration.
"""

import argparse
import collections
import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from flexround import imports, memory
from flexround.models import bert, llama, mobilenetv2, resnet, transformer
from flexround.models.blocks import Block
from flexround.quant.grid import Scheme
from flexround.quant.rounding import Rounding
from flexround.reconstruct.cache import Batches, Store
from flexround.reconstruct.optimise import ReconstructionError
from flexround.surgery import place
from flexround.surgery.fold_bn import fold_batch_norm

KEEP = 0.5


def images(_: int | None) -> Tensor:
    """Return 128 random images."""
    return torch.randn(128, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def tokens(rows: int, length: int) -> Tensor:
    """Return random token ids of type 0."""
    ids = torch.randint(30_000, (rows, 1, length), generator=torch.Generator().manual_seed(0))
    return torch.cat([ids, torch.zeros_like(ids)], dim=1)


def folded(factory: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a factory whose networks have their batch norms folded."""

    def build() -> nn.Module:
        model = factory().eval()
        fold_batch_norm(model)
        return model

    return build


def layer() -> nn.Module:
    """Return BERT-base with one layer; all twelve are alike."""
    return transformer.bert("classification", num_hidden_layers=1)


def llama_layer(hidden: int, intermediate: int, heads: int) -> nn.Module:
    """Return a LLaMA with one layer."""
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_attention_heads": heads}
    sizes |= {"vocab_size": 64}  # plain training would learn the embedding too
    return transformer.llama("causal-lm", num_hidden_layers=1, **sizes)


LLAMA = Scheme(8, symmetric=False, axis=0)  # of the weights, as the paper has them; 4 bit symmetric else
SCHEMES = {"llama": LLAMA, "llama-7b": LLAMA}
HEAVY = {"llama-7b"}  # not run unless named

# factory, blocks, inputs of a length, batch
Inputs = Callable[[int | None], Tensor]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], list[Block]], Inputs, int]] = {
    "resnet18": (folded(resnet.resnet18), resnet.blocks, images, 32),
    "resnet50": (folded(resnet.resnet50), resnet.blocks, images, 32),
    "mobilenetv2": (folded(mobilenetv2.mobilenet_v2), mobilenetv2.blocks, images, 32),
    "bert-base": (layer, bert.blocks, lambda length: tokens(128, length or 128), 32),
    # the size at which the authors' code was timed
    "llama": (lambda: llama_layer(1024, 2816, 16), llama.blocks, lambda length: tokens(8, length or 256) % 64, 2),
    "llama-7b": (lambda: llama_layer(4096, 11008, 32), llama.blocks, lambda length: tokens(2, length or 16) % 64, 1),
}


def measure(step: Callable[[], None], repeats: int) -> Tensor:
    """Return the median wall and CPU seconds of a call, shape (2,)."""
    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        step()
        times.append([time.perf_counter() - start[0], time.process_time() - start[1]])
    return torch.tensor(times).median(dim=0).values


def operations(step: Callable[[], None]) -> collections.Counter[str]:
    """Return what the host starts in a call: operations that call no other, and compiled functions."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        step()
    leaves = [event for event in trace.events() if not event.cpu_children]
    return collections.Counter(event.name for event in leaves)


def stepper(
    block: Block,
    draw: Callable[[], tuple[Tensor, Tensor, Tensor | None]],
    parameters: Sequence[nn.Parameter],
    precision: torch.dtype,
) -> Callable[[], None]:
    """Return one iteration: batch, forward, reconstruction error, backward, Adam."""
    adam = torch.optim.Adam(parameters, fused=True)

    def step() -> None:
        adam.zero_grad(set_to_none=True)
        x, target, mask = draw()
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            prediction = block(x, mask)
        ReconstructionError(2.0)(prediction.float(), target).backward()
        adam.step()

    return step


def quantize_weights(
    block: Block, rounding: Callable[..., Rounding], scheme: Scheme, fused: bool
) -> list[nn.Parameter]:
    """Put a rounding on each weight of a block; return what is learned."""
    block.module.requires_grad_(False)
    learned = []
    for layer in place.weight_layers(block):
        weight = layer.weight.detach()
        grid = place.weight_grid(block.name, weight, scheme, "minmax", 2.4)
        made = rounding(weight, grid, place.weight_axes(layer))
        made.fuse(fused)
        place.attach_rounding(layer, made)
        learned += [parameter for parameter in made.parameters() if parameter.requires_grad]
    return learned


def quantize_activations(block: Block, x: Tensor, batch: int) -> list[nn.Parameter]:
    """Put LSQ steps with dropping at a block's sites; return the steps."""
    for site in block.sites:
        place.attach_quantizer(site, place.Observer(Scheme(4), "minmax", 2.4))
    with torch.no_grad():
        block(x[:batch].clone())
    learned = []
    for site in block.sites:
        quantizer = place.attached_quantizer(site).quantizer
        quantizer.keep_probability, quantizer.generator = KEEP, torch.Generator().manual_seed(0)
        place.attach_quantizer(site, quantizer)
        learned.append(quantizer.raw_step.requires_grad_(True))
    return learned


def one_batch(x: Tensor, target: Tensor, batch: int) -> Callable[[], tuple[Tensor, Tensor, None]]:
    """Return a source of always the same batch."""
    store = Store(x.device)
    inputs, outputs = store.copy(x[:batch]), store.copy(target[:batch])
    return lambda: (inputs.clone(), outputs, None)  # a block may begin with an in-place operation


def drawn(x: Tensor, target: Tensor, keep: float, batch: int) -> Callable[[], tuple[Tensor, Tensor, Tensor | None]]:
    """Return a source of random batches, mixed with probability 1 - ``keep``."""
    rows, masks = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    return Batches(x, x, target, None, False, batch, keep, replacement=True, rows=rows, masks=masks).draw


def main() -> None:
    """Print one line per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rounding", default="flexround.quant.flexround:FlexRound")
    parser.add_argument("--networks", nargs="+", default=[name for name in NETWORKS if name not in HEAVY])
    parser.add_argument("--kinds", nargs="+", default=["weights", "q"], choices=["weights", "q"])
    parser.add_argument("--tokens", type=int, help="length of a text")
    parser.add_argument("--precision", default="float32", help="of the products, by autocast")
    parser.add_argument("--fused", action="store_true", help="compile the fake quantization")
    parser.add_argument("--operations", action="store_true", help="list what the host starts in an iteration")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    memory.keep_freed_memory()
    rounding, precision = imports.load(arguments.rounding), getattr(torch, arguments.precision)
    for name in arguments.networks:
        factory, cut, inputs, batch = NETWORKS[name]
        scheme = SCHEMES.get(name, Scheme(4))
        model = factory()
        totals = {kind: torch.zeros(2) for kind in ("plain", *arguments.kinds)}
        counts = {kind: collections.Counter[str]() for kind in totals}
        x = Store(torch.device("cpu")).copy(inputs(arguments.tokens))
        for index, block in enumerate(cut(model)):
            with torch.no_grad():
                x = Store(x.device).copy(block.before(x))
                target = Store(x.device).copy(block(x.clone()))
            for kind, total in totals.items():
                variant = cut(copy.deepcopy(model))[index]
                if kind == "plain":
                    learned = [p for p in variant.module.parameters() if p.ndim > 1]
                    draw = one_batch(x, target, batch)
                else:
                    learned = quantize_weights(variant, rounding, scheme, arguments.fused)
                    draw = drawn(x, target, KEEP if kind == "q" else 1.0, batch)
                if kind == "q":
                    learned += quantize_activations(variant, x, batch)
                step = stepper(variant, draw, learned, precision)
                total += measure(step, arguments.repeats)
                if arguments.operations:
                    counts[kind] += operations(step)
                del variant, learned, step  # a large one would not fit beside the next
            x = target
        print(name, *(_figure(kind, totals) for kind in totals), sep="   ", flush=True)
        for kind, count in counts.items():
            if count:
                most = ", ".join(f"{what} {number}" for what, number in count.most_common(30))
                print(f"{name} {kind}: {count.total()} operations: {most}", flush=True)


def _figure(kind: str, totals: dict[str, Tensor]) -> str:
    """Return milliseconds of a kind, wall and CPU, and how many times the plain ones they are."""
    wall, processor = totals[kind].tolist()
    times, processor_times = (totals[kind] / totals["plain"]).tolist()
    figure = f"{kind} {1e3 * wall:.1f} ms, CPU {1e3 * processor:.1f} ms"
    return figure if kind == "plain" else f"{figure} = {times:.2f} x, CPU {processor_times:.2f} x"


if __name__ == "__main__":
    main()
