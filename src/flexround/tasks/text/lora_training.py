"""Training of low-rank adapters (LoRA, by peft) that are merged into the weights afterwards."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from flexround.errors import SettingsError
from flexround.machine.seeding import derive
from flexround.models.tensors import linears, seeded
from flexround.tasks.text import training as text_training
from flexround.tasks.text.options import AdapterTrainSettings, LoraSettings

QUERY_AND_VALUE = ("q_proj", "v_proj")  # as LLaMA, OPT and GPT-Neo call them


def train(
    model: nn.Module,
    arrays: Mapping[str, np.ndarray],
    loss: Callable[[nn.Module, text_training.Batch, torch.Generator], Tensor],
    settings: AdapterTrainSettings,
) -> dict[str, Any]:
    """Train ``model`` in place as ``text_training.train`` does; with ``lora`` only query and value change.

    ``arrays`` are inputs and targets (N, ...), first axis the examples.

    Raises:
        NumericalError: the loss is NaN or Inf.
        SettingsError: adapters for a model without such layers.
    """
    if settings.lora is None:
        return text_training.train(model, arrays, loss, settings)
    for name in linears(model) if settings.frozen != "float32" else ():
        weight = model.get_parameter(name)
        weight.data = weight.data.to(getattr(torch, settings.frozen))
    adapted = attach(model, QUERY_AND_VALUE, settings.lora, settings.seed)
    facts = text_training.train(model, arrays, loss, settings)
    merge(adapted)
    return facts


def attach(model: Any, layers: Sequence[str], settings: LoraSettings, seed: int, **options: Any) -> Any:
    """Put adapters into linears, in place, and freeze all else. At first the adapters change nothing.

    ``layers`` are the last components of the linears' names; ``seed`` draws the initial weights, and the global
    generator stays as it was; ``options`` are further arguments of ``peft.LoraConfig``.

    Returns:
        peft's view of the model, for ``merge``.

    Raises:
        SettingsError: the model has no layers of one of these names.
    """
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if lacking := [layer for layer in layers if layer not in names]:
        raise SettingsError(f"lora: a {model.config.model_type} has no {lacking[0]}; leave `lora` out for this model")
    sizes: dict[str, Any] = {"r": settings.rank, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
    with seeded(derive("adapters", seed)):
        return peft.get_peft_model(model, peft.LoraConfig(target_modules=list(layers), **sizes, **options))


def merge(adapted: Any) -> None:
    """Add the adapters to the weights; the model under ``adapted`` is then a plain one again, none of it frozen.

    The weights that change are float32 from now on: a half precision would lose small changes.
    """
    for module in adapted.modules():
        if isinstance(module, LoraLayer) and module.weight.dtype in (torch.float16, torch.bfloat16):
            module.weight.data = module.weight.data.float()
    adapted.merge_and_unload().requires_grad_(True)
