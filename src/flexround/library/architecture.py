"""What decides what a network computes besides its tensors: the classes of its modules and their plain attributes."""

import contextlib
import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from flexround.models.surgery.preprocess import prepare
from flexround.quant.activation import ActivationQuantizer
from flexround.reconstruct.network import STRUCTURAL

QUANTIZED = "_quantized_by_flexround"  # attribute of each module of a quantized network; copies of it have it, too
# attributes, and keys of transformers' configurations, that change no output of a network in evaluation mode
INERT = re.compile(
    r"training|forward|_old_forward|inplace|.*drop.*|(torch_)?dtype|architectures|use_cache|return_dict|.*name_or_path"
    r"|output_(attentions|hidden_states)|transformers_version|_?attn_implementation.*|gradient_checkpointing|loss_type"
    r"|problem_type|generation_config|initializer_.*|id2label|label2id|max_seq_len_cached|all_tied_weights_keys"
    rf"|kernel_config|_(is_)?hf_.*|_commit_hash|{QUANTIZED}|{'|'.join(vars(nn.Module()))}"
)

NETWORK = "the network"
UNSTEADY = "changes in a forward pass"  # such as a counter or what a module keeps of its input


def blank(model: nn.Module, preprocess: Sequence[str]) -> nn.Module:
    """Return a copy of a model without values in evaluation mode, after the surgery of a recipe: it takes no memory."""
    memo: dict[int, Tensor] = {id(value): value.detach().to("meta") for value in model.buffers()}
    for value in model.parameters():
        memo[id(value)] = nn.Parameter(value.detach().to("meta"), requires_grad=False)
    outline = copy.deepcopy(model, memo)
    prepare(outline.eval(), [step for step in preprocess if step in STRUCTURAL])
    return outline


def steady(model: nn.Module, before: Mapping[str, str]) -> dict[str, str]:
    """Return what describes a model, with ``UNSTEADY`` in the place of each value that was another one ``before``."""
    classes = {name or NETWORK for name, _ in model.named_modules()}
    return {
        key: value if key in classes or before.get(key) == value else UNSTEADY
        for key, value in described(model).items()
    }


def differing(stored: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return the name of the first thing that a network has otherwise than the stored one, or None."""
    names = sorted(name for name in stored.keys() | found if stored.get(name) != UNSTEADY)
    return next((name for name in names if stored.get(name) != found.get(name)), None)


def described(model: nn.Module) -> dict[str, str]:
    """Return the class of each module, its numbers, texts and functions, and its configuration, by name."""
    found: dict[str, str] = {}
    configurations: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, ActivationQuantizer | nn.modules.dropout._DropoutNd):
            found[name or NETWORK] = type(module).__name__
            found |= {f"{name}.{key}".lstrip("."): value for key, value in _plain(vars(module), configurations)}
    return found


def _plain(values: Mapping[Any, Any], configurations: set[int]) -> Iterator[tuple[str, str]]:
    """Yield the plain values with their paths; of a configuration only the first time, since modules share it."""
    for key, value in values.items():
        if INERT.fullmatch(str(key)) or (str(key).startswith("_") and "config" in values):  # transformers' own notes
            continue
        if hasattr(value, "to_dict") and id(value) not in configurations:
            configurations.add(id(value))
            value = value.to_dict()
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", text) for inner, text in _plain(value, configurations))
        elif inspect.isroutine(value):
            yield key, value.__name__
        else:
            with contextlib.suppress(TypeError, ValueError):
                yield str(key), json.dumps(value)
