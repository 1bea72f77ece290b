"""The optimisation of one block: minimise the reconstruction error over groups of learned parameters."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from flexround.errors import NumericalError
from flexround.machine.precision import autocast
from flexround.models.blocks import identity
from flexround.reconstruct.cache import Batches, sequences

log = logging.getLogger(__name__)
TIMED = 20  # iterations whose time is measured
CHECK_EVERY = 100  # iterations between checks of the loss: each check waits for the GPU

SCHEDULES: dict[str, Callable[[float], float]] = {  # factor of the learning rate by progress in [0, 1)
    "none": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
}


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters with one learning rate; ``schedule``, a key of ``SCHEDULES``, changes it over the iterations."""

    parameters: Sequence[nn.Parameter]
    lr: float
    schedule: str


class SignDescent(torch.optim.Optimizer):
    """Signed gradient descent, p <- p - lr sign(g) (Cheng et al. 2024)."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters, any shape, with a gradient; gradients are overwritten by their signs."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad.sign_(), alpha=-group["lr"])


@dataclasses.dataclass(frozen=True)
class Penalty:
    """The roundings' regularisers (AdaRound's), which are added to the error.

    Attributes:
        regularizers: called with the exponent β; each returns a scalar or None.
        weight: factor λ of their sum; 0 for no penalty.
        warmup: initial fraction of the iterations without penalty.
        beta_start, beta_end: first and last β; β falls linearly after the warm-up.
    """

    regularizers: Sequence[Callable[[float], Tensor | None]] = ()
    weight: float = 0.0
    warmup: float = 0.0
    beta_start: float = 1.0
    beta_end: float = 1.0

    def added(self, error: Tensor, progress: float) -> Tensor:
        """Return the scalar ``error`` with the penalty at ``progress`` in [0, 1)."""
        if not self.weight or progress < self.warmup:
            return error
        done = (progress - self.warmup) / (1 - self.warmup)
        beta = self.beta_end + (self.beta_start - self.beta_end) * max(0.0, 1 - done)
        terms = [term for regularizer in self.regularizers if (term := regularizer(beta)) is not None]
        return error + self.weight * sum(terms) if terms else error


@dataclasses.dataclass(frozen=True)
class ReconstructionError:
    """|prediction - target|^p summed over dimension 1 and averaged over the others (BRECQ's loss).

    For token sequences (N, T, H) dimension 1 is the sequence, as in QDrop's code. One number per sample, (N,),
    counts as (N, 1).

    Attributes:
        p: exponent.
        masked: whether the sum omits padded tokens.
        behind: function applied to prediction and target first: ``Block.behind``.
    """

    p: float
    masked: bool = False
    behind: Callable[[Tensor], Tensor] = identity

    def __call__(self, prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the scalar error; ``mask`` is bool (N, T) or None; pooled outputs (N, C) have no padding."""
        prediction, target = self.behind(prediction), self.behind(target)
        if self.masked and mask is not None and sequences(target, mask):
            kept = mask.unsqueeze(-1).to(prediction.dtype)
            prediction, target = prediction * kept, target * kept
        if self.p == 2:
            total = torch.nn.functional.mse_loss(prediction, target, reduction="sum")
        else:
            total = (prediction - target).abs().pow(self.p).sum()
        return total / (target.numel() / (target.shape[1] if target.ndim > 1 else 1))


def optimise(
    block: Callable[[Tensor, Tensor | None], Tensor],
    batches: Batches,
    groups: Sequence[ParameterGroup],
    iterations: int,
    error: ReconstructionError,
    name: str,
    penalty: Penalty = Penalty(),
    precision: torch.dtype = torch.float32,
    optimizer: str = "adam",
    timed: Callable[[float], None] | None = None,
) -> Tensor:
    """Minimise the reconstruction error of one block.

    Args:
        block: the block with its quantizers.
        batches: source of (input, target, mask).
        groups: learned parameters.
        iterations: steps of the optimizer.
        error: the error to minimise.
        name: the block's name, for progress and errors.
        penalty: added to the error.
        precision: type of the block's products and convolutions; parameters and error stay float32.
        optimizer: ``adam`` (default betas, no weight decay) or ``sign``.
        timed: called with the mean seconds of the first ``TIMED`` iterations.

    Returns:
        (iterations,) losses without the penalty; a single loss if it depends on no parameter.

    NumericalError: a NaN or Inf loss, with block and iteration.
    """
    learned = [{"params": list(group.parameters), "lr": group.lr} for group in groups]
    descent = SignDescent(learned) if optimizer == "sign" else torch.optim.Adam(learned, fused=True)
    device = batches.masks.device
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)  # keeps small gradients
    losses: list[Tensor] = []
    progress = tqdm(range(iterations), desc=name, disable=None, leave=False, mininterval=1)
    start = time.perf_counter()
    for iteration in progress:
        if timed and iteration == TIMED:
            timed((time.perf_counter() - start) / TIMED)
        for settings, group in zip(groups, descent.param_groups, strict=True):
            group["lr"] = settings.lr * SCHEDULES[settings.schedule](iteration / iterations)
        x, target, mask = batches.draw()
        with autocast(precision, device):
            prediction = block(x, mask)
        loss = error(prediction.float(), target, mask)
        losses.append(loss.detach())
        if not loss.requires_grad:
            _check_finite(losses, name)
            break
        descent.zero_grad(set_to_none=True)
        scaler.scale(penalty.added(loss, iteration / iterations)).backward()
        scaler.step(descent)
        scaler.update()
        if (iteration + 1) % CHECK_EVERY == 0 or iteration + 1 == iterations:
            _check_finite(losses, name)
            progress.set_postfix(loss=f"{losses[-1].item():.3e}")
    return torch.stack(losses).cpu()


def _check_finite(losses: list[Tensor], name: str) -> None:
    """Raise at the first loss since the last check that is not finite."""
    start = (len(losses) - 1) // CHECK_EVERY * CHECK_EVERY
    recent = torch.stack(losses[start:])
    if not torch.isfinite(recent).all():
        first = start + int((~torch.isfinite(recent)).nonzero()[0, 0])
        raise NumericalError(
            f"block {name}: the loss is {losses[first].item()} at iteration {first}; "
            "lower the learning rate of this recipe, or look for NaN and Inf in the checkpoint and the samples"
        )
