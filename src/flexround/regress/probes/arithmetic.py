"""Step search, dropping, surgery and metrics, each on a few numbers."""

import copy
import itertools

import numpy as np
import torch
from torch import nn

from flexround.models.blocks import run
from flexround.models.mobilenetv2 import blocks, equalization_groups
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.grid import Scheme
from flexround.quant.search import initial_grid, mean_error
from flexround.regress.probes import networks
from flexround.settings.schema import Preprocess
from flexround.surgery import preprocess
from flexround.tasks.images import task as images
from flexround.tasks.squad import metric as squad_metric
from flexround.tasks.text import metrics as text_metrics
from flexround.tasks.webnlg import bleu

STEPS: tuple[Preprocess, ...] = ("replace_relu6", "cross_layer_equalization", "absorb_high_biases")
SENTENCES = (
    ("the Eiffel tower is in Paris.", ("The Eiffel Tower stands in Paris, France.", "Paris has the Eiffel Tower.")),
    ("Alan Bean was born in Wheeler and flew on Apollo 12.", ("Alan Bean was born in Wheeler; he was on Apollo 12.",)),
    ("The club Ajax plays in Amsterdam.<|endoftext|> More", ("Ajax is a club that plays in Amsterdam.",)),
)
ANSWERS = (
    ("the Tower", ("Tower", "a Tower of iron")),
    ("in 1889", ("1889",)),
    ("Gustave Eiffel", ("Eiffel", "the engineer Eiffel")),
    ("", ("Paris",)),
)


def search(variant: int) -> dict[str, float]:
    """Return step, zero point and error of initial grids for one- and two-sided tensors."""
    both = networks.normal(6, 40, seed=11) * torch.tensor([0.1, 0.5, 1, 1, 2, 5]).unsqueeze(1) + 0.3
    both = both * (1 + networks.RELATIVE * variant)
    found = {}
    for bits, symmetric, axis, p in itertools.product((2, 4, 8), (True, False), (None, 0), (2.0, 2.4)):
        scheme = Scheme(bits, symmetric, axis)
        for side, x in (("both", both), ("one", both.relu())):
            grid = initial_grid(x, scheme, "mse", p)
            kind = "symmetric" if symmetric else "asymmetric"
            name = f"{side}-{bits}-{kind}-{'tensor' if axis is None else 'channel'}-p{p}"
            found[f"{name}/step"] = float(grid.step.mean())
            found[f"{name}/zero"] = float(grid.zero_point.mean())
            found[f"{name}/error"] = float(mean_error(x, grid, axis, p).mean())
    return found


def dropping(variant: int) -> dict[str, float]:
    """Return what an activation quantizer keeps, and how far the rest is from its input."""
    x = networks.normal(64, 50, seed=12).relu() * (1 + networks.RELATIVE * variant)
    quantizer = ActivationQuantizer(initial_grid(x, Scheme(3)))
    quantized = quantizer(x).detach()
    quantizer.keep_probability, quantizer.generator = 0.5, networks.generator(13)
    dropped = quantizer(x).detach()
    at = (dropped - quantized).abs() < (dropped - x).abs()
    return {
        "kept": float(at[quantized != x].float().mean()),
        "error_kept": float((dropped - quantized)[at].abs().mean()),
        "error_dropped": float((dropped - x)[~at].abs().mean()),
        "sum": float(dropped.sum() / x.sum()),
    }


@torch.no_grad()
def surgery(variant: int) -> dict[str, float]:
    """Return what folding and equalization change: the output hardly, the weights."""
    x, model = networks.normal(8, 3, 32, 32, seed=14), networks.separable(variant)
    folded, equal, replaced = (copy.deepcopy(model) for _ in range(3))
    preprocess.prepare(folded, [])
    preprocess.prepare(equal, STEPS, equalization_groups(equal))
    preprocess.prepare(replaced, STEPS[:1])
    pairs = {"folded": (folded, model), "equalized": (equal, replaced)}
    found = {}
    for name, (changed, before) in pairs.items():
        expected = before(x)
        found[f"{name}/output"] = float((changed(x) - expected).norm() / expected.norm())
        found[f"{name}/blocks"] = float((run(blocks(changed), x) - expected).norm() / expected.norm())
        found[f"{name}/norms"] = sum(isinstance(module, nn.BatchNorm2d) for module in changed.modules())
        convs = [module for module in changed.modules() if isinstance(module, nn.Conv2d)]
        found[f"{name}/weights"] = sum(float(conv.weight.square().mean().log()) for conv in convs) / len(convs)
        found[f"{name}/biases"] = sum(0.0 if c.bias is None else float(c.bias.mean()) for c in convs) / len(convs)
    return found


def metrics(variant: int) -> dict[str, float]:
    """Return every metric on fixed predictions."""
    rng = np.random.default_rng(15)
    labels, guesses = rng.integers(2, size=(2, 60))
    guesses[:35] = labels[:35]
    found = {name: text_metrics.scored(name, guesses, labels).value for name in ("acc", "f1", "matthews")}
    x = rng.normal(size=60)
    y = x**3 + rng.normal(size=60)
    found |= {name: text_metrics.scored(name, y, x).value for name in ("pearson", "spearman")}
    found["perplexity"] = text_metrics.perplexity(2 + 0.1 * x).value
    texts, references = [text for text, _ in SENTENCES], [expected for _, expected in SENTENCES]
    seen = np.array([True, False, True])
    found |= {f"bleu_{name}": scored.value for name, scored in bleu.scores(texts, references, seen).items()}
    scores = squad_metric.scores([answer for answer, _ in ANSWERS], [accepted for _, accepted in ANSWERS])
    found |= {f"squad_{name}": 100 * float(values.mean()) for name, values in scores.items()}
    hits = images.hits_at(networks.normal(200, 10, seed=16), rng.integers(10, size=200), 0).mean(axis=1)
    return found | {"top1": 100 * float(hits[0]), "top5": 100 * float(hits[1])}
