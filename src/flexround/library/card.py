"""The model card: README.md of a directory that the library writes, with the Hugging Face Hub's header."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import BaseModel
from torch import nn

from flexround import __version__
from flexround.io import artifacts
from flexround.library.settings import params
from flexround.reconstruct.phases import ERROR_SAMPLES
from flexround.settings.params import DEFAULT
from flexround.settings.schema import A_GRID, W_GRID, Hyper, Recipe, label

FILE = "README.md"
SAVED = "flexround"  # kind of a directory written by ``save``
HUB = re.compile(r"(?:[\w.-]+/)?[\w.-]+", re.ASCII)  # the name of a model on the Hub
SHOWN = (*W_GRID, *A_GRID, "iters", "batch", "lr")  # keys shown whatever their source
LOADING = {  # the Hub's name of the loading library, and its code
    SAVED: (SAVED, 'import flexround\nquantized = flexround.load(".", model)  # a {name} of any weights'),
    "transformers": ("transformers", 'from {module} import {name}\nmodel = {name}.from_pretrained(".")'),
    "torch": (None, 'from safetensors.torch import load_file\nstate = load_file("model.safetensors")  # or each shard'),
}
CARD = """\
---
{header}---

# {title}, quantized to {bits}

Load it inside this directory:

```python
{code}
```

{settings}

The error of a block's output is |difference|^{power:g}, summed over the channels of images or the tokens of a text,
averaged over the rest, on at most {count} samples. It is given before learning (phase weights: at round-to-nearest)
and after it.

{errors}

The method is that of J. H. Lee, J. Kim, S. J. Kwon and D. Lee, "FlexRound: Learnable Rounding based on Element-wise
Division for Post-Training Quantization", ICML 2023, https://arxiv.org/abs/2306.00317, unless the rounding is another.
Written by flexround {version} with PyTorch {torch}.
"""


class Origin(BaseModel):
    """The origin of a quantized network, besides its settings.

    Attributes:
        recipe: name in params/recipes.yaml, or ``own``.
        rounding: name of the rounding, or of the user's class.
        base_model: name of the original network on the Hub, or of its directory; None without a name.
        samples: shape of the calibration samples, (N, ...); for tokens (N, T).
        left: clauses about the layers that stay at round-to-nearest or in floating point.
    """

    recipe: str
    rounding: str
    base_model: str | None
    samples: tuple[int, ...]
    left: tuple[str, ...]


class Facts(BaseModel):
    """The facts about a network in its manifest, besides the list of files."""

    recipe: Recipe
    hyper: Hyper
    hyper_sources: dict[str, str]
    folded: dict[str, str]
    origin: Origin


def origin(recipe: str, rounding: str, source: str, x: torch.Tensor, left: Sequence[str]) -> Origin:
    """Return the origin of a network: ``source`` is a name on the Hub or a path, ``x`` the samples as in ``Inputs``."""
    name, shape = source, x.shape if x.is_floating_point() else x[:, 0].shape
    if cached := re.search(r"models--([^/]+)/snapshots/", source):
        name = cached[1].replace("--", "/")
    elif source and (Path(source).is_dir() or not HUB.fullmatch(source)):
        name = Path(source).resolve().name
    base_model = name if HUB.fullmatch(name) else None
    return Origin(recipe=recipe, rounding=rounding, base_model=base_model, samples=tuple(shape), left=tuple(left))


def write(directory: Path, kind: str, facts: Facts, report: Sequence[Mapping[str, Any]], model: nn.Module) -> None:
    """Write README.md into a directory without one.

    Args:
        directory: with all other files of the network.
        kind: ``SAVED``, or the name of an export.
        facts, report: facts and report of the network, as in :class:`flexround.Quantized`.
        model: the network, with or without values.
    """
    name, module = type(model).__name__, type(model).__module__
    configured = kind != SAVED and (directory / "config.json").exists()
    library, code = LOADING["transformers" if configured else kind]
    header = {
        "base_model": facts.origin.base_model,
        "base_model_relation": facts.origin.base_model and "quantized",
        "library_name": library,
        "pipeline_tag": "text-generation" if name.endswith("ForCausalLM") else None,
        "tags": list(dict.fromkeys(["flexround", "quantized", kind])),
    }
    errors = [
        [one["block"], one["phase"], one.get("iterations", 0), f"{one['error_rtn']:.3g}", f"{one['error_hard']:.3g}"]
        for one in report
    ]
    text = CARD.format(
        header=yaml.safe_dump({key: value for key, value in header.items() if value}, sort_keys=False),
        title=facts.origin.base_model or name,
        bits=f"W{facts.recipe.w_bits}" + (f"A{facts.recipe.a_bits}" if facts.recipe.a_bits else ""),
        code=code.format(name=name, module="transformers" if module.startswith("transformers.") else module),
        settings=_table(["setting", "value", "source"], _settings(facts)),
        power=facts.hyper.loss_p,
        count=ERROR_SAMPLES,
        errors=_table(["block", "phase", "iterations", "error before", "error after"], errors),
        version=__version__,
        torch=torch.__version__,
    )
    artifacts.write_text(directory / FILE, text)


def _settings(facts: Facts) -> Iterable[Sequence[Any]]:
    """Yield a row for each key of the recipe, each key of ``SHOWN``, and each key not decided by the paper's rules."""
    recipe, hyper, origin = facts.recipe, facts.hyper, facts.origin
    for key, value in (recipe.model_dump(exclude={"hyper", "samples"}) | {"rounding": origin.rounding}).items():
        if value:
            yield label(Recipe.model_fields[key]), value, f"recipe {origin.recipe}"
    yield "calibration samples, shape", origin.samples, "given"
    yield "not learned", "; ".join(origin.left) or "nothing", "the warning of the call"
    unused = {"samples", *([] if hyper.w_granularity == "group" else ["group_size"])}
    paper = params("paper")
    rules = {DEFAULT, *(rule.source for rule in (*paper.defaults.hyper, *paper.scale.hyper))}
    for key, value in hyper.model_dump(exclude=unused).items():
        shown = value != "low" if key in SHOWN else facts.hyper_sources[key] not in rules
        if shown and (recipe.a_bits or not key.startswith("a_")):
            yield label(Hyper.model_fields[key]), value, facts.hyper_sources[key]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown, with the texts of its cells escaped."""
    cells = [[str(cell).replace("|", r"\|").replace("\n", " ") for cell in line] for line in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *cells])
