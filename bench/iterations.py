"""Seconds per reconstruction iteration, summed over a network's units, against plain forward + backward + Adam.

The real torchvision networks at 64 px and one layer of BERT-base at 128 tokens, batch 32, and one LLaMA layer of hidden
size 1024 at 256 tokens, batch 2; random weights (the time does not depend on them). Both kinds of reconstruction draw
their batches from a cache, Q mixes and drops; plain training has its one batch for nothing.
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

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


def images() -> Tensor:
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


def llama_layer() -> nn.Module:
    """Return a LLaMA with one layer, of the size at which the authors' code was timed."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    sizes |= {"vocab_size": 64}  # plain training would learn the embedding too
    return transformer.llama("causal-lm", num_hidden_layers=1, **sizes)


SCHEMES = {"llama": Scheme(8, symmetric=False, axis=0)}  # of the weights, as the paper has them; 4 bit symmetric else

# factory, blocks, inputs, batch
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], list[Block]], Callable[[], Tensor], int]] = {
    "resnet18": (folded(resnet.resnet18), resnet.blocks, images, 32),
    "resnet50": (folded(resnet.resnet50), resnet.blocks, images, 32),
    "mobilenetv2": (folded(mobilenetv2.mobilenet_v2), mobilenetv2.blocks, images, 32),
    "bert-base": (layer, bert.blocks, lambda: tokens(128, 128), 32),
    "llama": (llama_layer, llama.blocks, lambda: tokens(8, 256) % 64, 2),
}


def measure(step: Callable[[], None], repeats: int) -> float:
    """Return the median seconds of a call."""
    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def stepper(
    block: Block, draw: Callable[[], tuple[Tensor, Tensor, Tensor | None]], parameters: Sequence[nn.Parameter]
) -> Callable[[], None]:
    """Return one iteration: batch, forward, reconstruction error, backward, Adam."""
    adam = torch.optim.Adam(parameters, fused=True)

    def step() -> None:
        adam.zero_grad(set_to_none=True)
        x, target, mask = draw()
        ReconstructionError(2.0)(block(x, mask), target).backward()
        adam.step()

    return step


def quantize_weights(block: Block, rounding: Callable[..., Rounding], scheme: Scheme) -> list[nn.Parameter]:
    """Put a rounding on each weight of a block; return what is learned."""
    block.module.requires_grad_(False)
    learned = []
    for layer in place.weight_layers(block):
        weight = layer.weight.detach()
        grid = place.weight_grid(block.name, weight, scheme, "mse", 2.4)
        made = rounding(weight, grid, place.weight_axes(layer))
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
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    memory.keep_freed_memory()
    rounding = imports.load(arguments.rounding)
    for name in arguments.networks:
        factory, cut, inputs, batch = NETWORKS[name]
        scheme = SCHEMES.get(name, Scheme(4))
        model = factory()
        totals = dict.fromkeys(("plain", "weights", "q"), 0.0)
        x = Store(torch.device("cpu")).copy(inputs())
        for index in range(len(cut(model))):
            variants = {kind: cut(copy.deepcopy(model))[index] for kind in totals}
            with torch.no_grad():
                x = Store(x.device).copy(variants["plain"].before(x))
                target = Store(x.device).copy(variants["plain"](x.clone()))
            learned = {"plain": [p for p in variants["plain"].module.parameters() if p.ndim > 1]}
            learned["weights"] = quantize_weights(variants["weights"], rounding, scheme)
            learned["q"] = quantize_weights(variants["q"], rounding, scheme)
            learned["q"] += quantize_activations(variants["q"], x, batch)
            draws = {"plain": one_batch(x, target, batch), "weights": drawn(x, target, 1.0, batch)}
            draws["q"] = drawn(x, target, KEEP, batch)
            for kind, block in variants.items():
                totals[kind] += measure(stepper(block, draws[kind], learned[kind]), arguments.repeats)
            x = target
        plain = totals["plain"]
        print(
            f"{name:<12} plain {1e3 * plain:7.1f} ms   weights only {1e3 * totals['weights']:7.1f} ms = "
            f"{totals['weights'] / plain:.2f} x   Q W4A4 {1e3 * totals['q']:7.1f} ms = {totals['q'] / plain:.2f} x",
            flush=True,
        )


if __name__ == "__main__":
    main()
