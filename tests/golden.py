"""Golden numbers: exact values of small computations, which show a defect that the noise of a table's accuracies hides.

    PYTHONPATH=tests:worlds python tests/golden.py    # measures them and writes golden.csv anew, two minutes

A probe is a function from a variant to numbers by name. Variant 0 gives the values. In the others, each weight differs
by some millionths, as on a machine that rounds differently. The tolerance of a number is three times the furthest that
it moved in ``VARIANTS``. A number may stay where it is in a few variants by luck. So its tolerance is at least that of
the median recipe, relative to its value, and at least ``FLOOR``; not for RTN, which learns nothing. Seeds are not
varied: other draws give other numbers, and must be noticed.
"""

import copy
import functools
import math
import statistics
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import nn

from flexround import imports
from flexround.io import artifacts
from flexround.machine.seeding import derive
from flexround.mini import models
from flexround.models import mobilenetv2, resnet, transformer
from flexround.models.blocks import run
from flexround.models.surgery.preprocess import prepare
from flexround.models.tokenizer_files import TOKENIZER
from flexround.reconstruct.engine import reconstruct
from flexround.reconstruct.reconstruction import Reconstruction, Resident
from flexround.reconstruct.state import State
from flexround.settings.layout import Run
from flexround.settings.load import load_params
from flexround.settings.params import hyper
from flexround.tasks import webnlg
from flexround.tasks.commonsense import Commonsense
from flexround.tasks.options import CommonsenseOptions
from synthetic import articles, files, tokenizers

VARIANTS = ((1, 1), (2, 1), (3, 1), (4, 2))  # number and threads
FLOOR = 1e-5
FILE = Path(__file__).with_suffix(".csv")
MINI = load_params("mini")
CPU = torch.device("cpu")


def generator(*seed):
    return torch.Generator().manual_seed(derive(*seed))


def normal(*shape, seed):
    return torch.randn(shape, generator=generator(*seed))


@torch.no_grad()
def varied(model, variant):
    for number, weight in enumerate(model.parameters()):
        weight.mul_(1 + (variant > 0) * 2.0**-20 * normal(*weight.shape, seed=(variant, number)))
    return model


@torch.no_grad()
def trained(model):
    """Give batch norms weights, biases and statistics as after training, so that folding them changes the weights."""
    random = generator(3)
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.weight.uniform_(0.3, 1.5, generator=random)
        norm.bias.normal_(0.2, 0.3, generator=random)
        norm.momentum = 1.0
    model.train()(normal(32, 3, 32, 32, seed=[4]))
    return model.eval()


def separable(variant):
    return varied(trained(models.mobilenetv2(0.1, dropout=0.0)), variant)


def convolutional(variant):
    """Return a ResNet of six blocks, batch norms folded; how it is cut into blocks; 64 inputs."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        model = models.NarrowResNet(torchvision.models.resnet.BasicBlock, (1, 1, 1, 1), 4, 10)
    varied(trained(model), variant)
    prepare(model, [])
    return model, resnet.blocks, normal(64, 3, 16, 16, seed=[5])


def language_model(factory, variant, **sizes):
    return varied(factory("causal-lm", **sizes, initializer_range=0.3, bos_token_id=0, eos_token_id=0), variant)


def transposed(variant):
    """Return a GPT-2, whose linears are ``Conv1D`` with transposed weights; how it is cut into blocks; 64 inputs."""
    sizes = {"vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 24}
    ids = torch.randint(60, (64, 16), generator=generator(6))
    model = language_model(transformer.gpt2, variant, **sizes)
    return model, transformer.gpt2_blocks, torch.stack([ids, torch.zeros_like(ids)], dim=1)


@torch.no_grad()
def surgery(variant):
    """What equalization changes: the output hardly, the weights."""
    x, model = normal(8, 3, 32, 32, seed=[14]), separable(variant)
    steps = ("replace_relu6", "cross_layer_equalization", "absorb_high_biases")
    replaced = copy.deepcopy(model)
    prepare(replaced, steps[:1])
    prepare(model, steps, mobilenetv2.equalization_groups(model))
    convs, expected = [module for module in model.modules() if isinstance(module, nn.Conv2d)], replaced(x)
    return {
        "output": (run(mobilenetv2.blocks(model), x) - expected).norm() / expected.norm(),
        "weights": statistics.fmean(float(conv.weight.square().mean().log()) for conv in convs),
        "biases": statistics.fmean(float(conv.bias.mean()) for conv in convs),
    }


def metrics(variant):
    pairs = (
        ("the Eiffel tower is in Paris.", ["The Eiffel Tower stands in Paris, France.", "Paris has the Eiffel Tower."]),
        (
            "Alan Bean was born in Wheeler and flew on Apollo 12.",
            ["Alan Bean was born in Wheeler; he was on Apollo 12."],
        ),
        ("The club Ajax plays in Amsterdam.<|endoftext|> More", ["Ajax is a club that plays in Amsterdam."]),
    )
    found = webnlg.scores(*zip(*pairs, strict=True), np.array([True, False, True]))
    return {f"bleu_{name}": scored.value for name, scored in found.items()}


def questions(variant):
    """Metrics of a random LLaMA, their numbers of examples, and which calibration samples are drawn."""
    options = {"root": "commonsense", "documents": 30, "shots": (0,), "block_size": 32, "test_block": 48}
    task = Commonsense(CommonsenseOptions(**options))
    texts = [row["text"] for row in articles.make("wikitext2", 20, 1, 0)["train"]]
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    model = language_model(transformer.llama, variant, vocab_size=400, max_position_embeddings=512, **sizes)
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        files.commonsense(data / "commonsense", 30, 8, 40, 0)
        task.prepare(data, data)
        artifacts.write_text(data / TOKENIZER, tokenizers.train(texts, "bpe-begin", 400).to_str())
        found, drawn = task.evaluate(model, data, CPU, 16, data, "validation"), task.calibration(data, 12, 0)
        train = (data / "train.jsonl").read_bytes().splitlines()
    numbers = found.metrics | {f"{metric}/examples": count for metric, count in found.n_examples.items()}
    numbers["calibration/indices"] = zlib.crc32(drawn["indices"].astype("<i8").tobytes()) % 10**6
    numbers["calibration/from_train"] = np.mean([row in train for row in drawn["examples"].tobytes().splitlines()])
    return {key: number for key, number in numbers.items() if not key.startswith("average")}


BUDGET = {"samples": 64, "batch": 16, "iters": 30, "a_iters": 20, "a_init_samples": 32}
RATES = {"lr": 5.0e-3, "a_lr": 1.0e-3}  # small ones: what a scale needs to converge amplifies the last bits
OF_ROUNDING = {  # what differs from BUDGET and RATES
    "adaround": {"iters": 90, "lr": 1.0e-2, "reg_weight": 0.01},  # its regulariser acts late
    "adaquant": {"lr": {"v": 5.0e-4, "s1": 5.0e-3}},
    "adaquant-flexround": {"lr": {"v": 5.0e-4, "scales": 5.0e-3}},
}
IMAGES, TEXT = ("imagenet", "resnet18-brecq"), ("webnlg", "gpt2-medium")
ROUNDINGS = ("rtn", "adaround", "adaquant", "flexround", "adaquant-flexround")
RECIPES = {
    **{f"b-{rounding}-w{bits}": IMAGES for rounding in ROUNDINGS for bits in (4, 3, 2)},
    **{f"{setting}-{rounding}-w3a3": IMAGES for setting in "bq" for rounding in ("adaround", "flexround")},
    **{f"q-{rounding}-w{bits}a8": TEXT for bits in (4, 8) for rounding in ("rtn", "adaround", "flexround")},
}


def engine(name, variant):
    """What a network becomes by a recipe of the mini scale.

    ``error``: squared error of the output relative to its variance. ``moved``: share of codes that are not the nearest
    on the initial grid. ``step``: mean of ln(step / initial step). ``hard``: mean of ln(error of a block with its final
    codes / error while it was learned). Then bits, mean zero points and the mean step of activations.
    """
    model, cut, samples = convolutional(variant) if RECIPES[name] == IMAGES else transposed(variant)
    before, blocks, recipe = copy.deepcopy(model.state_dict()), cut(model), MINI.recipe(name)
    with torch.no_grad():
        expected = run(blocks, samples)
    own = {**BUDGET, **RATES, **OF_ROUNDING.get(recipe.rounding, {})}
    settings, *_ = hyper(MINI, Run("mini", *RECIPES[name], name, 0))
    settings = settings.model_copy(update={key: value for key, value in own.items() if getattr(settings, key)})
    rounding = imports.load(MINI.rounding_target(recipe.rounding))
    job = Reconstruction(model, blocks, Resident(blocks), recipe, settings, rounding, ("sentinel",), CPU)
    stored = {}
    with tempfile.TemporaryDirectory() as directory, State(Path(directory) / "run", "0" * 16).opened() as state:
        records = reconstruct(job, samples, state)
        for entry in state.entries:
            stored |= state.part(entry).quantized
    with torch.no_grad():
        error = (run(cut(model), samples) - expected).square().mean() / expected.var()
    weights = {key.partition("/")[2]: one for key, one in stored.items() if one.codes is not None}
    steps = [one.grid.step.mean() for one in stored.values() if one.codes is None]
    moved, changes = [], []
    for layer, one in weights.items():
        grid, codes, initial = one.grid, one.codes, one.initial_step
        nearest = (torch.round(before[f"{layer}.weight"] / initial) + grid.zero_point).clamp(grid.qmin, grid.qmax)
        moved.append((nearest != codes).float().flatten())
        changes.append((grid.step / initial).log().flatten())
    bits = [math.log2(one.grid.qmax - one.grid.qmin + 1) for one in weights.values()]
    hard = [math.log(block["error_hard"] / block["error_soft"]) for block in records if "error_soft" in block]
    return {
        "error": error,
        "moved": torch.cat(moved).mean(),
        "step": torch.cat(changes).mean(),
        "zero": statistics.fmean(float(one.grid.zero_point.mean()) for one in weights.values()),
        "bits_first": bits[0],
        "bits_inner": bits[1],
        "bits_last": bits[-1],
        "activation": statistics.fmean(map(float, steps or [0.0])),
        "hard": statistics.fmean(hard or [0.0]),
    }


PROBES = {
    **{probe.__name__: probe for probe in (surgery, metrics, questions)},
    **{recipe: functools.partial(engine, recipe) for recipe in RECIPES},
}


def compute(probe, variant=0, threads=1):
    """Return the numbers of a probe."""
    torch.set_num_threads(threads)
    # oneDNN for AVX2 writes past the gradient of a strided 1x1 kernel of fewer than eight channels.
    torch.backends.mkldnn.enabled = False
    try:
        return {f"{probe}/{name}": float(number) for name, number in PROBES[probe](variant).items()}
    finally:
        torch.backends.mkldnn.enabled = True


def measure():
    """Write value, tolerance and largest deviation of each number."""
    values, *others = (
        {name: value for probe in PROBES for name, value in compute(probe, *variant).items()}
        for variant in ((0, 1), *VARIANTS)
    )
    furthest = {name: max(abs(other[name] - value) for other in others) for name, value in values.items()}
    relative = defaultdict(list)  # by what a number is of, whichever the recipe
    for name, value in values.items():
        if abs(value) > FLOOR:  # beside a value that is zero but for rounding, any deviation is large
            relative[name.partition("/")[2]].append(furthest[name] / abs(value))
    lines = ["name,value,tolerance,largest_deviation\n"]
    for name, value in values.items():
        alike = relative.get(name.partition("/")[2], [0.0])
        usual = 0.0 if "b-rtn-" in name else abs(value) * statistics.median(alike)
        tolerance = max(3 * furthest[name], 3 * usual, FLOOR * max(1.0, abs(value)))
        lines.append(f"{name},{value:.9g},{tolerance:.9g},{furthest[name]:.9g}\n")
    FILE.write_text("".join(lines))


if __name__ == "__main__":
    measure()
