"""The settings of a user's network: the settings of the scale's most similar run, and the caller's own values.

For known architectures a family also names the function that cuts them into blocks.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flexround import imports
from flexround.errors import SettingsError
from flexround.machine import precision
from flexround.quant.rounding import Rounding
from flexround.reconstruct.codes import BYTE
from flexround.settings.layout import Run
from flexround.settings.load import is_path, load_params
from flexround.settings.params import Params, hyper
from flexround.settings.schema import Hyper, Recipe
from flexround.settings.validation import validate

OWN = "own"  # name of a recipe given as an object


class Family(NamedTuple):
    """An architecture that the suite knows.

    Attributes:
        task, checkpoint: names in the scales ``paper`` and ``short``, whose hyper-parameters are the defaults.
        blocks: ``package.module:function(model) -> list[Block]``; None for a cut by structure.
        equalization: likewise the function that returns equalization groups, if needed.
    """

    task: str
    checkpoint: str
    blocks: str | None = None
    equalization: str | None = None


IMAGES = Family("imagenet", "resnet18-brecq")  # settings of unknown networks, by their kind of input
TOKENS = Family("commonsense", "llama-7b")
KNOWN = {  # module and class, or for transformers the beginning of the class's name
    "torchvision.models.resnet:ResNet": IMAGES._replace(blocks="flexround.models.resnet:blocks"),
    "flexround.models.cifar_resnet:CifarResNet": IMAGES._replace(blocks="flexround.models.cifar_resnet:blocks"),
    "torchvision.models.mobilenetv2:MobileNetV2": Family(
        "imagenet",
        "mobilenetv2-brecq",
        "flexround.models.mobilenetv2:blocks",
        "flexround.models.mobilenetv2:equalization_groups",
    ),
    "transformers.models.bert.modeling_bert:": Family(
        "glue-mnli", "bert-base", "flexround.models.transformer:bert_blocks"
    ),
    "transformers.models.gpt_neo.modeling_gpt_neo:": Family(
        "wikitext2", "gpt-neo-125m", "flexround.models.transformer:gpt_neo_blocks"
    ),
    "transformers.models.opt.modeling_opt:": Family("wikitext2", "opt-125m", "flexround.models.transformer:opt_blocks"),
    "transformers.models.gpt2.modeling_gpt2:": Family(
        "webnlg", "gpt2-medium", "flexround.models.transformer:gpt2_blocks"
    ),
    "transformers.models.llama.modeling_llama:": TOKENS._replace(blocks="flexround.models.transformer:llama_blocks"),
}


def family(model: nn.Module, x: Tensor) -> Family:
    """Return the family of a model with inputs ``x`` (N, ...); a subclass belongs to its parent's family."""
    wrapped: Any = getattr(model, "get_base_model", None)  # PEFT's
    model = model if wrapped is None else wrapped()
    for kind in type(model).__mro__:
        name = f"{kind.__module__}:{kind.__name__}"
        for known, found in KNOWN.items():
            if name == known or (known.endswith(":") and name.startswith(known)):
                return found
    return IMAGES if x.is_floating_point() else TOKENS


def unfit(recipe: Recipe, hyper: Hyper) -> dict[str, str]:
    """Return each format that can't hold networks with these settings, with the reason.

    Limits that depend on the network (the width of single layers, their classes) are checked during writing.
    """
    bits, inputs = recipe.w_bits, recipe.a_bits
    rules = [  # format, whether it can't hold the network, reason
        ("compressed-tensors", bits not in (4, BYTE), f"weights of {bits} bit; it packs 4 and 8"),
        (
            "compressed-tensors",
            inputs not in (None, BYTE) or (inputs and bits != BYTE),
            f"W{bits}A{inputs}; transformers reads activations of 8 bit with weights of 8 bit, or weights alone",
        ),
        (
            "compressed-tensors",
            inputs and hyper.a_granularity == "token",
            "a_granularity=token has no steps to store; set a_granularity='tensor'",
        ),
        (
            "compressed-tensors",
            hyper.w_scheme == "asymmetric" and not inputs,
            "transformers does not read packed weights on an asymmetric grid; quantize with w_scheme='symmetric'",
        ),
        (
            "onnx",
            inputs and (inputs != BYTE or hyper.a_granularity != "tensor"),
            f"activations of {inputs} bit per {hyper.a_granularity}; its nodes for them have 8 bit per tensor",
        ),
        ("onnx", hyper.w_granularity == "group", "weights in groups; its nodes have a step for a channel or for all"),
        ("torch", inputs, "a state dict has no place for quantized activations; use save, or onnx"),
    ]
    return {kind: reason for kind, broken, reason in reversed(rules) if broken}  # the first reason counts


@functools.cache
def _shipped(scale: str) -> Params:
    """Return the settings of a scale in ``params/``."""
    return load_params(scale)


def params(scale: str) -> Params:
    """Return the settings of a scale; a user's file is read again, because it may have changed.

    Raises:
        SettingsError: the scale is unknown, or its files have errors (all are listed).
    """
    return load_params(scale) if is_path(scale) else _shipped(scale)


def recipe(params: Params, given: str | Recipe) -> tuple[str, Recipe]:
    """Return a recipe and its name.

    Raises:
        SettingsError: the recipe is unknown or quantizes nothing.
    """
    name, found = (given, params.recipe(given)) if isinstance(given, str) else (OWN, given)
    if found.setting is None:
        raise SettingsError(f"recipe {name!r} has no rounding of its own; choose one that has")
    return name, found


def rounding(params: Params, recipe: Recipe) -> type[Rounding]:
    """Return the class of a recipe's rounding."""
    return imports.load(params.rounding_target(recipe.rounding or ""))


def resolve(
    params: Params, name: str, given: Recipe, family: Family, samples: int, device: torch.device, own: dict[str, Any]
) -> tuple[Hyper, dict[str, str]]:
    """Return all hyper-parameters and the source of each.

    Defaults come from the scale's entry for this family, except: samples and batch follow the data, CPUs use float32,
    and the first block is learned.

    Args:
        params: settings of the scale, which has the family's network.
        name: name of the recipe.
        given: the recipe.
        family: family of the network.
        samples: number of samples.
        device: device of the computation.
        own: values set by the caller.

    Raises:
        SettingsError: a value is unknown or wrong, or the scale has other networks.
    """
    params.checkpoint(family.checkpoint)
    recipes = params.recipes.model_copy(update={"recipes": {**params.recipes.recipes, name: given}})
    run = Run(params.scale.name, family.task, family.checkpoint, name, 0)
    resolved, sources = hyper(params._replace(recipes=recipes), run)
    values = resolved.model_dump()
    here = {"samples": samples, "batch": min(values["batch"], samples)}
    if "reconstruct_stem" not in given.hyper:
        here |= {"reconstruct_stem": True}
    if device.type == "cpu":
        here |= {"precision": "float32", "cache_dtype": "float32", "fused": False}
    sources |= dict.fromkeys(here, "the library: samples, device, every block is learned") | dict.fromkeys(own, "given")
    return validate(Hyper, values | here | own, f"recipe {name}"), sources


def chosen_device(asked: str | torch.device | None) -> torch.device:
    """Return the device of the computation; set up a GPU to give the same bits each time."""
    device = torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        precision.repeatable()
    return device
