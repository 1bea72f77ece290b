"""The work on one block: learn weights (B), weights and activation steps (Q), or activation steps alone (B)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flexround.errors import NumericalError
from flexround.machine.precision import tensor_float
from flexround.models.blocks import Block, identity
from flexround.models.surgery import attach
from flexround.quant import native
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.formula import compiler_works
from flexround.quant.grid import in_groups, nearest_codes
from flexround.quant.rounding import Rounding
from flexround.reconstruct.cache import Batches, Store, on, slices
from flexround.reconstruct.codes import Result, Stored, site_key
from flexround.reconstruct.initial import calibrate
from flexround.reconstruct.inputs import ends, unquantized
from flexround.reconstruct.layers import Layer, check, fit, harden, learned, made, parameter_groups
from flexround.reconstruct.optimise import ParameterGroup, Penalty, ReconstructionError, optimise
from flexround.reconstruct.reconstruction import Reconstruction

ERROR_SAMPLES = 32  # rows for comparing RTN, soft and hard errors
LOSS_WINDOW = 10  # iterations averaged for the losses before and after


class Phase:
    """One sweep over the blocks; used activations are removed from ``carry`` to free their memory."""

    name = ""
    steps_alone = False  # learns activation steps but no weights

    def __init__(self, job: Reconstruction, samples: Tensor, store: Store) -> None:
        self.job, self.samples, self.store = job, samples, store
        self.names = {module: name for name, module in job.model.named_modules()}

    def start(self) -> dict[str, Tensor]:
        """Return the carried activations (N, ...) before the first block, by name."""
        raise NotImplementedError

    def learn(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        """Learn one block after ``full_precision``; return its result, the next block's caches (N, ...), its record."""
        raise NotImplementedError

    def full_precision(self, index: int, carry: dict[str, Tensor]) -> None:
        """Replace ``full`` (N, ...) by the full-precision block's input; add its output as ``target`` (N, ...).

        Raises:
            NumericalError: the target holds NaN or Inf, from the samples or the weights.
        """
        block = self.job.blocks[index]
        carry["full"] = self.before(block, carry["full"])
        carry["target"] = self.forward(block, carry["full"])
        if not all(bool(torch.isfinite(rows).all()) for rows in carry["target"].split(self.job.hyper.batch)):
            raise NumericalError(
                f"block {block.name}: its full-precision output holds NaN or Inf; look for them in the checkpoint and "
                "in the calibration samples, or values exceed the precision (float16: 65504)"
            )

    def before(self, block: Block, x: Tensor) -> Tensor:
        """Run the glue before a block over cached rows (N, ...)."""
        if block.before is identity:
            return x
        with self.job.weights.surroundings():
            return self.through(lambda rows, _: block.before(rows), x)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """Run a block over all cached rows (N, ...)."""
        with self.job.products():
            return self.through(block, x)

    @torch.no_grad()
    def through(self, call: Callable[[Tensor, Tensor | None], Tensor], x: Tensor) -> Tensor:
        """Return the cache of the outputs of ``call`` for all cached rows (N, ...) and their mask, batch by batch."""
        output = None
        for rows in slices(len(x), self.job.hyper.batch):
            part = call(on(self.job.device, x[rows]), self.job.mask_of(rows))
            if output is None:  # one allocation: joining collected parts would need the memory twice
                output = self.store.empty(len(x), part)
            output[rows] = part
        assert output is not None
        return output

    def error(self, block: Block, predict: Callable[[slice, Tensor | None], Tensor], target: Tensor) -> float:
        """Return a block's error on the first rows of ``target`` (N, ...); ``predict`` gets rows and their mask (n, T).

        Prediction and target are outputs of the block, before its ``behind``.
        """
        job, total, count = self.job, 0.0, min(ERROR_SAMPLES, len(target))
        error = ReconstructionError(job.hyper.loss_p, job.hyper.mask_padding, block.behind)
        for rows in slices(count, job.hyper.batch):
            mask = job.mask_of(rows)
            with torch.no_grad(), job.products():
                part = predict(rows, mask)
            total += error(part.float(), on(job.device, target[rows]), mask).item() * len(part)
        return total / count

    def block_error(self, block: Block, x: Tensor, target: Tensor) -> float:
        """Return the current block's reconstruction error on ``x`` (N, ...) against ``target`` (N, ...)."""
        return self.error(block, lambda rows, mask: block(on(self.job.device, x[rows]), mask), target)

    def steps(self, block: Block) -> Result:
        """Return the current grids of a block's activation quantizers."""
        return {site_key(self.names, site): Stored(attach.attached_quantizer(site).stored()) for site in block.sites}

    def step_group(self, block: Block) -> list[ParameterGroup]:
        """Return the activation steps of a block as a parameter group (always annealed, as in BRECQ and QDrop)."""
        steps = [step for quantizer in attach.quantizers(block) for step in quantizer.parameters()]
        for step in steps:
            step.requires_grad_(True)
        return [ParameterGroup(steps, self.job.hyper.a_lr, "cosine")] if steps else []

    def minimise(
        self,
        block: Block,
        caches: tuple[Tensor, Tensor, Tensor],
        groups: Sequence[ParameterGroup],
        roundings: Sequence[Rounding] = (),
    ) -> dict[str, Any]:
        """Minimise a block's error; return the losses before and after, for the record.

        Args:
            block: the block with its quantizers, which afterwards drop nothing and have fixed steps.
            caches: quantized input, full-precision input and target, (N, ...) each.
            groups: learned parameters.
            roundings: the roundings of the block's weights, if weights are learned.
        """
        job, hyper, what = self.job, self.job.hyper, "step " if self.steps_alone else ""
        iterations, p = (hyper.a_iters, hyper.a_loss_p) if self.steps_alone else (hyper.iters, hyper.loss_p)
        batches = Batches(
            *caches,
            job.mask,
            hyper.mask_padding and block.any_length,
            hyper.batch,
            hyper.input_keep_probability if job.joint else 1.0,
            hyper.replacement,
            job.generator(f"{what}rows", block.name),
            job.generator(f"{what}mix", block.name, job.device),
        )
        compiles = hyper.fused and compiler_works(job.device)
        parts: list[Rounding | ActivationQuantizer] = [*(r for r in roundings if r.fusable), *attach.quantizers(block)]
        compiled = parts if compiles else []
        regularizers = [rounding.regularizer for rounding in roundings]
        for part in compiled:
            part.fuse(True)
        with tensor_float(hyper.precision == "tf32"):
            losses = optimise(
                block,
                batches,
                groups,
                iterations,
                ReconstructionError(p, hyper.mask_padding, block.behind),
                block.name,
                Penalty(regularizers, hyper.reg_weight, hyper.reg_warmup, hyper.reg_beta_start, hyper.reg_beta_end),
                job.precision,
                "adam" if self.steps_alone else hyper.optimizer,
                job.timed,
            )
        for part in compiled:
            part.fuse(False)
        for quantizer in attach.quantizers(block):
            quantizer.generator = None
            for step in quantizer.parameters():
                step.requires_grad_(False)
                step.grad = None
        facts: dict[str, Any] = {
            "loss_before": losses[:LOSS_WINDOW].mean().item(),
            "loss_after": losses[-LOSS_WINDOW:].mean().item(),
            "iterations": len(losses),
        }
        if not self.steps_alone:
            cpu = job.device.type == "cpu" and native.built()
            facts["kernels"] = "compiled" if compiled else "native" if cpu else "plain"
        return facts

    def learns(self, index: int) -> bool:
        """Return whether a block is learned; ``reconstruct_stem: false`` skips the stem, a first block of one layer."""
        stem = index == 0 and len(self.job.blocks) > 1 and len(attach.weight_layers(self.job.blocks[0])) == 1
        return self.job.hyper.reconstruct_stem or not stem


class WeightPhase(Phase):
    """Weights (B), or weights and activation steps together (Q)."""

    name = "weights"

    def start(self) -> dict[str, Tensor]:
        return {"full": self.samples, "quantized": self.samples}

    def learn(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        job, block = self.job, self.job.blocks[index]
        full, target = carry.pop("full"), carry.pop("target")
        quantized = self.before(block, carry.pop("quantized"))
        special = ends(job, index, quantized)
        modules = attach.weight_layers(block)
        layers = [made(job, self.names[module], module, special.get(module)) for module in modules]
        record: dict[str, Any] = {"phase": self.name, "block": block.name}
        if job.joint:
            record["inputs"] = [self.names[layer] for layer in unquantized(job, index, quantized)]
        check(layers)
        record["error_rtn"] = self._attach(index, layers, quantized, target)
        unseen, alike = set[str](), False  # alike: whether the codes equal the learned weights
        if self.learns(index):
            unseen = fit(job, block, layers, quantized)
            if job.hyper.iters:
                record |= self._learn(block, [layer.rounding for layer in layers], full, quantized, target)
                alike = all(layer.on_grid() for layer in layers)
                record["error_soft"] = math.nan if alike else self.block_error(block, quantized, target)
        record |= learned(layers, unseen)
        found = harden(layers)
        if job.joint:
            found |= self.steps(block)
        del full  # frees one cache before the output needs one
        output = self.forward(block, quantized)
        record["error_hard"] = self.error(block, lambda rows, _: on(job.device, output[rows]), target)
        if alike:
            record["error_soft"] = record["error_hard"]
        return found, {"full": target, "quantized": output}, record

    def _attach(self, index: int, layers: Sequence[Layer], x: Tensor, target: Tensor) -> float:
        """Attach the roundings to their layers; return round-to-nearest's error of the block on ``x`` (N, ...).

        The sites of Q are calibrated at round-to-nearest, the baseline of every rounding.
        """
        originals = [layer.module.weight.detach().clone() for layer in layers]  # type: ignore[operator]
        for layer, weight in zip(layers, originals, strict=True):
            grid = layer.rounding.grid
            attach.bake(layer.module, nearest_codes(in_groups(weight, grid.step), grid) * grid.step)
        if self.job.joint:
            calibrate(self.job, index, x[: self.job.hyper.a_init_samples])
        error = self.block_error(self.job.blocks[index], x, target)
        for layer, weight in zip(layers, originals, strict=True):
            attach.bake(layer.module, weight)
            attach.attach_rounding(layer.module, layer.rounding)
        return error

    def _learn(
        self, block: Block, roundings: Sequence[Rounding], full: Tensor, quantized: Tensor, target: Tensor
    ) -> dict[str, Any]:
        """Optimise a block; return the losses before and after, for the record."""
        job, hyper = self.job, self.job.hyper
        groups = parameter_groups(roundings, job)
        if job.joint:
            groups += self.step_group(block)
        if not any(group.parameters for group in groups):
            return {}
        for number, quantizer in enumerate(attach.quantizers(block) if job.joint else ()):
            quantizer.keep_probability = hyper.keep_probability
            quantizer.generator = job.generator("drop", f"{block.name}/{number}", job.device)
        return self.minimise(block, (quantized, full, target), groups, roundings)


class StepPhase(Phase):
    """Activation steps in B: learned after all weights, block by block on full-precision inputs."""

    name = "steps"
    steps_alone = True

    def start(self) -> dict[str, Tensor]:
        return {"full": self.samples, "initial": self.samples[: self.job.hyper.a_init_samples]}

    def learn(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        hyper, block = self.job.hyper, self.job.blocks[index]
        full, target = carry.pop("full"), carry.pop("target")
        initial = self.before(block, carry.pop("initial"))
        names = [self.names[layer] for layer in unquantized(self.job, index, initial)]
        record: dict[str, Any] = {"phase": self.name, "block": block.name, "inputs": names, "learned": False}
        initial = self.store.copy(calibrate(self.job, index, initial))
        record["error_rtn"] = self.block_error(block, full, target)  # with the initial steps from the search
        if hyper.a_iters and self.learns(index) and (groups := self.step_group(block)):
            record |= self.minimise(block, (full, full, target), groups) | {"learned": True}
        record["error_hard"] = self.block_error(block, full, target)
        return self.steps(block), {"full": target, "initial": initial}, record
