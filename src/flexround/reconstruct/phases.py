"""What is done to one block: learn its weights (B), its weights and activation steps (Q), or its steps alone (B)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import SettingsError
from flexround.models.blocks import Block, identity
from flexround.quant.grid import Scheme, nearest_codes
from flexround.quant.rounding import Rounding
from flexround.reconstruct.cache import Batches, forward
from flexround.reconstruct.job import Job
from flexround.reconstruct.optimise import Annealing, ParameterGroup, ReconstructionError, optimise
from flexround.reconstruct.result import Result, Stored, site_key, store_codes, weight_key
from flexround.surgery import place

ERROR_SAMPLES = 256  # rows on which RTN, soft and hard errors are compared
LOSS_WINDOW = 10  # iterations averaged for the loss before and after


class Phase:
    """One sweep over the blocks."""

    name = ""

    def __init__(self, job: Job, names: dict[nn.Module, str], samples: Tensor) -> None:
        self.job, self.names, self.samples = job, names, samples

    def start(self) -> dict[str, Tensor]:
        """Return the carried activations before the first block."""
        raise NotImplementedError

    def block(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        """Work on one block; return its result, what is carried on, and its record."""
        raise NotImplementedError

    def before(self, block: Block, x: Tensor) -> Tensor:
        """Run the glue before a block over cached rows."""
        if block.before is identity:
            return x
        return forward(lambda rows, _: block.before(rows), x, None, self.job.hyper.batch, self.job.device)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Run a block over the first cached rows, all of them as a rule."""
        return forward(block, x, self.job.mask, self.job.hyper.batch, self.job.device)

    def loss(self, p: float) -> ReconstructionError:
        """Return the error that is minimised and reported."""
        return ReconstructionError(p, self.job.hyper.mask_padding)

    def error(self, prediction: Tensor, target: Tensor) -> float:
        """Return the reconstruction error of the first rows."""
        rows, mask = slice(0, ERROR_SAMPLES), self.job.mask
        kept = None if mask is None else mask[rows].to(target.device)
        return self.loss(self.job.hyper.loss_p)(prediction[rows], target[rows], kept).item()

    def calibrate_sites(self, index: int, x: Tensor) -> Tensor:
        """Fix the initial steps of a block's sites on ``x``, each on inputs quantized upstream; return the output."""
        hyper, block = self.job.hyper, self.job.blocks[index]
        mask = None if self.job.mask is None else self.job.mask[: len(x)].to(self.job.device)
        for number, site in enumerate(block.sites):
            is_output = number == len(block.sites) - 1
            bits = self.job.activation_bits(index) if is_output else (self.job.recipe.a_bits or 0)
            scheme = Scheme(bits, hyper.a_scheme == "symmetric")
            kept = mask if hyper.mask_padding else None
            place.attach_quantizer(site, place.Observer(scheme, hyper.a_init, hyper.a_init_p, kept))
        with torch.no_grad():  # one batch, so that every site sees all rows at once
            output = block(x.to(self.job.device, copy=True), mask).to(x.device)
        for site in block.sites:
            observer = place.attached_quantizer(site)
            place.attach_quantizer(site, observer.quantizer)  # type: ignore[arg-type]
        return output

    def steps(self, block: Block) -> Result:
        """Return the grids of a block's activation quantizers as they are now."""
        found: Result = {}
        for site in block.sites:
            quantizer = place.attached_quantizer(site)
            grid = dataclasses.replace(quantizer.grid, step=quantizer.step().detach().cpu())
            found[site_key(self.names, site)] = Stored(grid)
        return found

    def step_group(self, block: Block) -> list[ParameterGroup]:
        """Return the activation steps of a block as a parameter group (always annealed, as in BRECQ and QDrop)."""
        steps = [quantizer.raw_step for quantizer in place.quantizers(block)]
        for step in steps:
            step.requires_grad_(True)
        return [ParameterGroup(steps, self.job.hyper.a_lr, cosine=True)] if steps else []

    def freeze_steps(self, block: Block) -> None:
        """End the learning of a block's steps and the dropping."""
        for quantizer in place.quantizers(block):
            quantizer.raw_step.requires_grad_(False)
            quantizer.raw_step.grad = None
            quantizer.generator = None


class WeightPhase(Phase):
    """Weights (B), or weights and activation steps together (Q)."""

    name = "weights"

    def start(self) -> dict[str, Tensor]:
        return {"full": self.samples, "quantized": self.samples}

    def block(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        job = self.job
        block, reference = job.blocks[index], job.reference[index]
        full, quantized = self.before(reference, carry["full"]), self.before(block, carry["quantized"])
        target = self.forward(reference, full)
        layers = place.weight_layers(block)
        roundings = [self._rounding(index, layer) for layer in layers]
        originals = self._bake_nearest(layers, roundings)
        if job.joint:
            self.calibrate_sites(index, quantized[: job.hyper.a_init_samples])
        record: dict[str, Any] = {"phase": self.name, "block": block.name}
        record["error_rtn"] = self.error(self.forward(block, quantized[:ERROR_SAMPLES]), target)
        self._attach(layers, roundings, originals)
        if job.hyper.iters and (index > 0 or job.hyper.reconstruct_stem):
            record |= self._learn(block, roundings, full, quantized, target)
            record["error_soft"] = self.error(self.forward(block, quantized[:ERROR_SAMPLES]), target)
        found = self._harden(layers)
        if job.joint:
            found |= self.steps(block)
        output = self.forward(block, quantized)
        record["error_hard"] = self.error(output, target)
        return found, {"full": target, "quantized": output}, record

    def _rounding(self, index: int, layer: nn.Module) -> Rounding:
        """Make a layer's rounding at its initial grid."""
        job, hyper = self.job, self.job.hyper
        axes = place.weight_axes(layer)
        assert axes is not None
        axis = axes.output if hyper.w_granularity == "channel" else None
        scheme = Scheme(job.weight_bits(index), hyper.w_scheme == "symmetric", axis)
        weight = layer.weight.detach()  # type: ignore[operator]
        grid = place.weight_grid(self.names[layer], weight, scheme, hyper.w_init, hyper.w_init_p)
        return job.rounding(weight, grid, axes, **job.recipe.options)

    def _bake_nearest(self, layers: Sequence[nn.Module], roundings: Sequence[Rounding]) -> list[Tensor]:
        """Round all weights to nearest, where every rounding is measured from; return the originals."""
        originals = [layer.weight.detach().clone() for layer in layers]  # type: ignore[operator]
        for layer, rounding, weight in zip(layers, roundings, originals, strict=True):
            place.bake(layer, nearest_codes(weight, rounding.grid) * rounding.grid.step)
        return originals

    def _attach(self, layers: Sequence[nn.Module], roundings: Sequence[Rounding], originals: Sequence[Tensor]) -> None:
        """Put the original weights back, below their roundings."""
        for layer, rounding, weight in zip(layers, roundings, originals, strict=True):
            place.bake(layer, weight)
            place.attach_rounding(layer, rounding)

    def _learn(
        self, block: Block, roundings: Sequence[Rounding], full: Tensor, quantized: Tensor, target: Tensor
    ) -> dict[str, Any]:
        """Optimise a block; return the losses before and after."""
        job, hyper = self.job, self.job.hyper
        groups = [group for rounding in roundings for group in _weight_groups(rounding, job)]
        groups = _merge(groups)
        if job.joint:
            groups += self.step_group(block)
            for number, quantizer in enumerate(place.quantizers(block)):
                quantizer.keep_probability = hyper.keep_probability
                quantizer.generator = job.generator("drop", f"{block.name}/{number}", job.device)
        if not any(group.parameters for group in groups):
            return {}
        batches = Batches(
            quantized,
            full,
            target,
            job.mask,
            hyper.mask_padding,
            hyper.batch,
            hyper.input_keep_probability if job.joint else 1.0,
            hyper.replacement,
            job.generator("rows", block.name),
            job.generator("mix", block.name, job.device),
        )
        annealing = Annealing(hyper.reg_weight, hyper.reg_warmup, hyper.reg_beta_start, hyper.reg_beta_end)
        regularizers = [rounding.regularizer for rounding in roundings]
        loss = self.loss(hyper.loss_p)
        losses = optimise(block, batches, groups, hyper.iters, loss, regularizers, annealing, block.name)
        self.freeze_steps(block)
        return _ends(losses)

    def _harden(self, layers: Sequence[nn.Module]) -> Result:
        """Replace each rounding by its codes times its step, in float32."""
        found: Result = {}
        for layer in layers:
            rounding, weight = place.attached_rounding(layer), place.original_weight(layer)
            codes, step = rounding.codes(weight), rounding.step()
            grid = dataclasses.replace(rounding.grid, step=step)
            place.bake(layer, codes * step)
            found[weight_key(self.names[layer])] = Stored(grid, store_codes(codes, grid), rounding.grid.step)
        return found


class StepPhase(Phase):
    """B with quantized activations: the steps, after all weights, block by block on full-precision inputs."""

    name = "steps"

    def start(self) -> dict[str, Tensor]:
        return {"full": self.samples, "initial": self.samples[: self.job.hyper.a_init_samples]}

    def block(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        job, hyper = self.job, self.job.hyper
        block, reference = job.blocks[index], job.reference[index]
        full = self.before(reference, carry["full"])
        target = self.forward(reference, full)
        initial = self.calibrate_sites(index, self.before(block, carry["initial"]))
        record: dict[str, Any] = {"phase": self.name, "block": block.name}
        record["error_initial"] = self.error(self.forward(block, full[:ERROR_SAMPLES]), target)
        if hyper.a_iters and block.sites and (index > 0 or hyper.reconstruct_stem):
            batches = Batches(
                full,
                full,
                target,
                job.mask,
                hyper.mask_padding,
                hyper.batch,
                1.0,
                hyper.replacement,
                job.generator("step rows", block.name),
                job.generator("step mix", block.name, job.device),
            )
            groups = self.step_group(block)
            none = Annealing(0.0, 0.0, 1.0, 1.0)
            losses = optimise(block, batches, groups, hyper.a_iters, self.loss(hyper.a_loss_p), [], none, block.name)
            self.freeze_steps(block)
            record |= _ends(losses)
        record["error_hard"] = self.error(self.forward(block, full[:ERROR_SAMPLES]), target)
        return self.steps(block), {"full": target, "initial": initial}, record


def _weight_groups(rounding: Rounding, job: Job) -> list[ParameterGroup]:
    """Give each of a rounding's groups its learning rate.

    Raises:
        SettingsError: ``lr`` has none for a group.
    """
    rates, groups = job.hyper.lr, []
    for name, parameters in rounding.groups().items():
        if isinstance(rates, dict) and name not in rates:
            raise SettingsError(
                f"hyper-parameters of {'/'.join(map(str, job.seed_parts))}: lr has no rate for the group {name!r} of "
                f"{type(rounding).__name__}, only for {', '.join(map(repr, rates))}; add it, or give one number for all"
            )
        lr = rates[name] if isinstance(rates, dict) else rates
        groups.append(ParameterGroup(parameters, lr, job.hyper.schedule == "cosine"))
    return groups


def _merge(groups: Sequence[ParameterGroup]) -> list[ParameterGroup]:
    """Join groups of equal settings: one fused optimiser call instead of one per layer."""
    merged: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for group in groups:
        merged.setdefault((group.lr, group.cosine), []).extend(group.parameters)
    return [ParameterGroup(parameters, lr, cosine) for (lr, cosine), parameters in merged.items() if parameters]


def _ends(losses: Tensor) -> dict[str, Any]:
    """Return the mean loss of the first and of the last iterations."""
    return {
        "loss_before": losses[:LOSS_WINDOW].mean().item(),
        "loss_after": losses[-LOSS_WINDOW:].mean().item(),
        "iterations": len(losses),
    }
