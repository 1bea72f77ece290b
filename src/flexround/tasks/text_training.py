"""Training of transformers models, whole or by adapters, as in Hugging Face's run_glue, run_qa and run_clm.

AdamW without decay of biases and norms, a learning rate that falls linearly to zero, clipped gradients, and possibly
a smaller last batch per epoch. accelerate handles mixed precision. Low-rank adapters (LoRA, from peft) are merged into
the weights after training.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import peft
import torch
from accelerate import Accelerator
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import get_linear_schedule_with_warmup

from flexround.errors import NumericalError
from flexround.machine.seeding import derive
from flexround.models.tensors import linears, seeded
from flexround.tasks.options import AdapterTrainSettings, LoraSettings, TrainSettings
from flexround.tasks.resumable import Progress

Batch = dict[str, Tensor]
LOOK_EVERY = 50  # steps between looks at the loss
QUERY_AND_VALUE = ("q_proj", "v_proj")  # names in LLaMA, OPT and GPT-Neo


def len_rows(batch: Batch) -> int:
    """Return a batch's number of rows."""
    return len(next(iter(batch.values())))


def train(
    model: nn.Module,
    arrays: Mapping[str, np.ndarray],
    loss: Callable[[nn.Module, Batch, torch.Generator], Tensor],
    settings: TrainSettings,
    weight: Callable[[Batch], Any] = len_rows,
) -> dict[str, Any]:
    """Train ``model`` in place on its device and leave it in evaluation mode; after a kill, resume at the last epoch.

    Args:
        model: any module; with ``checkpointing`` a transformers model.
        arrays: inputs and targets (N, ...), with examples on the first axis.
        loss: loss of a batch (rows of ``arrays`` as tensors on the device); it draws from the given CPU generator.
        settings: the whole recipe.
        weight: number of items that a batch's loss averages; it weights the parts of a batch under ``at_once``.

    Returns:
        Number of steps, and the last epoch's mean loss.

    Raises:
        NumericalError: the loss is NaN or Inf.
    """
    accelerator = Accelerator(
        cpu=next(model.parameters()).device.type == "cpu",
        mixed_precision=settings.precision,
    )
    generator = torch.Generator().manual_seed(derive("targets", settings.seed))
    groups = decay_groups(model, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, eps=settings.eps, fused=True)
    order = torch.Generator().manual_seed(derive("order", settings.seed))
    loader = _loader(arrays, settings, order)
    steps = settings.epochs * len(loader)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(settings.warmup * steps), steps)
    progress = Progress(
        model,
        optimizer,
        {"schedule": schedule} | ({"scaler": accelerator.scaler} if accelerator.scaler else {}),
        {"targets": generator, "order": order},
    )
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    network: Any = model

    def step(batch: Batch) -> Tensor:
        values = []
        for part, share in parts(batch, settings.at_once, weight):
            value = loss(prepared, part, generator) * share
            accelerator.backward(value)
            values.append(value.detach())
        accelerator.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return torch.stack(values).sum()

    def epoch(number: int) -> dict[str, float]:
        return {"loss": _epoch(loader, step, f"epoch {number + 1}/{settings.epochs}")}

    model.train()
    if settings.checkpointing:
        network.activation_checkpointing_enable()
    facts = progress.epochs(settings.epochs, derive("dropout", settings.seed, 0), epoch)
    model.eval()
    if settings.checkpointing:
        network.activation_checkpointing_disable()
    return {"steps": steps, **facts}


def parts(batch: Batch, size: int | None, weight: Callable[[Batch], Any]) -> Iterator[tuple[Batch, Any]]:
    """Yield at most ``size`` rows of a batch at a time, and their share of its ``weight``.

    The gradients of the parts' losses, multiplied by their shares, add up to the whole batch's gradient.
    """
    count = len_rows(batch)
    size = size or count
    for start in range(0, count, size):
        part = {name: value[start : start + size] for name, value in batch.items()}
        yield part, weight(part) / weight(batch) if size < count else 1.0


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return optimiser groups; vectors (biases and weights of norms) are not decayed."""
    decayed = [p for p in model.parameters() if p.ndim > 1 and p.requires_grad]
    rest = [p for p in model.parameters() if p.ndim <= 1 and p.requires_grad]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def _loader(arrays: Mapping[str, np.ndarray], settings: TrainSettings, order: torch.Generator) -> DataLoader[int]:
    """Return batches shuffled by ``order``; each batch's rows are indexed at once, not one by one."""

    def take(rows: list[int]) -> Batch:
        return {name: torch.from_numpy(array[rows]) for name, array in arrays.items()}

    count = len(next(iter(arrays.values())))
    examples: Any = range(count)
    return DataLoader(examples, settings.batch, shuffle=True, generator=order, collate_fn=take)


def _epoch(loader: DataLoader[Any], step: Callable[[Batch], Tensor], name: str) -> float:
    """Run one epoch; return the mean loss."""
    losses: list[Tensor] = []
    progress = tqdm(loader, desc=name, disable=not sys.stderr.isatty(), leave=False, mininterval=1)
    for batch in progress:
        losses.append(step(batch))
        if len(losses) % LOOK_EVERY == 0 or len(losses) == len(loader):
            recent = torch.stack(losses[-LOOK_EVERY:])
            if not torch.isfinite(recent).all():
                raise NumericalError(f"{name}: the loss is NaN or Inf before step {len(losses)}; lower `lr`")
            progress.set_postfix(loss=f"{recent.mean().item():.4f}")
    return torch.stack(losses).mean().item()


def train_adapters(
    model: nn.Module,
    arrays: Mapping[str, np.ndarray],
    loss: Callable[[nn.Module, Batch, torch.Generator], Tensor],
    settings: AdapterTrainSettings,
) -> dict[str, Any]:
    """Train ``model`` in place as ``train`` does; with ``lora`` only query and value change.

    ``arrays`` are inputs and targets (N, ...), with examples on the first axis.

    Raises:
        NumericalError: the loss is NaN or Inf.
        ValueError: adapters for a model without query and value layers, raised by peft.
    """
    if settings.lora is None:
        return train(model, arrays, loss, settings)
    for name in linears(model) if settings.frozen != "float32" else ():
        weight = model.get_parameter(name)
        weight.data = weight.data.to(getattr(torch, settings.frozen))
    adapted = attach(model, QUERY_AND_VALUE, settings.lora, settings.seed)
    facts = train(model, arrays, loss, settings)
    merge(adapted)
    return facts


def attach(model: Any, layers: Sequence[str], settings: LoraSettings, seed: int, **options: Any) -> Any:
    """Put adapters into linears, in place, and freeze all other weights. Initially the adapters change nothing.

    ``layers`` are the last components of the linears' names; ``seed`` decides the initial weights, without a change of
    the global generator; ``options`` are further arguments of ``peft.LoraConfig``.

    Returns:
        peft's wrapper of the model, for ``merge``.
    """
    sizes: dict[str, Any] = {"r": settings.rank, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
    with seeded(derive("adapters", seed)):
        return peft.get_peft_model(model, peft.LoraConfig(target_modules=list(layers), **sizes, **options))


def merge(adapted: Any) -> None:
    """Add the adapters to the weights; the model under ``adapted`` is then a plain model again, without frozen weights.

    The changed weights become float32, because half precision would lose small changes.
    """
    for module in adapted.modules():
        if isinstance(module, LoraLayer) and module.weight.dtype in (torch.float16, torch.bfloat16):
            module.weight.data = module.weight.data.float()
    adapted.merge_and_unload().requires_grad_(True)
