"""The work on one block: learn its weights (B), its weights and activation steps (Q), or its steps alone (B)."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from flexround.errors import NumericalError, SettingsError
from flexround.machine.precision import tensor_float
from flexround.models.blocks import Block, identity
from flexround.models.surgery import attach
from flexround.quant import native
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.formula import compiler_works
from flexround.quant.grid import Grid, Scheme, in_groups, nearest_codes
from flexround.quant.rounding import Rounding
from flexround.reconstruct.cache import Batches, Store, on, slices
from flexround.reconstruct.codes import WEIGHT, Result, Stored, site_key, store_codes
from flexround.reconstruct.initial import calibrate
from flexround.reconstruct.inputs import LayerInputs, ends, unquantized
from flexround.reconstruct.optimise import ParameterGroup, Penalty, ReconstructionError, optimise
from flexround.reconstruct.reconstruction import End, Reconstruction

ERROR_SAMPLES = 32  # rows on which RTN, soft and hard errors are compared
SAME = 1e-5  # of a step: how little it moves if nothing is learned
LOSS_WINDOW = 10  # iterations averaged for the loss before and after


class Phase:
    """One sweep over the blocks; activations are taken out of ``carry`` when they are used, to free their memory."""

    name = ""
    steps_alone = False  # activation steps are learned, and no weights

    def __init__(self, job: Reconstruction, samples: Tensor, store: Store) -> None:
        self.job, self.samples, self.store = job, samples, store
        self.names = {module: name for name, module in job.model.named_modules()}

    def start(self) -> dict[str, Tensor]:
        """Return the carried activations (N, ...) before the first block, by name."""
        raise NotImplementedError

    def learn(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        """Work on one block after ``full_precision``; return its result, what is carried on (N, ...), its record."""
        raise NotImplementedError

    def full_precision(self, index: int, carry: dict[str, Tensor]) -> None:
        """Replace ``full`` (N, ...) by a block's input; the block is in full precision; add its ``target`` (N, ...).

        Raises:
            NumericalError: the target holds NaN or Inf, from the samples or the weights.
        """
        block = self.job.blocks[index]
        carry["full"] = self.before(block, carry["full"])
        carry["target"] = self.forward(block, carry["full"])
        if not all(bool(torch.isfinite(rows).all()) for rows in carry["target"].split(self.job.hyper.batch)):
            wrong = [name for name, value in block.module.named_parameters() if not torch.isfinite(value).all()]
            where = f"in the checkpoint's {', '.join(wrong)}" if wrong else "in the calibration samples"
            if self.job.hyper.precision == "float16":
                where += ", or it exceeds float16, 65504: set precision=bfloat16"
            raise NumericalError(
                f"block {block.name}: its full-precision output holds NaN or Inf, as do values {where}"
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
            if output is None:  # one allocation: collecting parts and joining them would need the memory twice
                output = self.store.empty(len(x), part)
            output[rows] = part
        assert output is not None
        return output

    def error(self, block: Block, predict: Callable[[slice, Tensor | None], Tensor], target: Tensor) -> float:
        """Return a block's error on the first rows of ``target`` (N, ...); ``predict`` gets rows and their mask (n, T).

        Prediction and target are what the block gives, before what lies ``behind`` it.
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
        """Return the reconstruction error of a block as it is, on ``x`` (N, ...) against ``target`` (N, ...)."""
        return self.error(block, lambda rows, mask: block(on(self.job.device, x[rows]), mask), target)

    def unquantized(self, index: int, x: Tensor) -> list[str]:
        """Return the names of a block's layers whose inputs stay in floating point; ``x`` (N, ...) is its input."""
        return [self.names[layer] for layer in unquantized(self.job, index, x)]

    def steps(self, block: Block) -> Result:
        """Return the grids of a block's activation quantizers as they are now."""
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
    ) -> tuple[dict[str, Any], set[nn.Parameter]]:
        """Minimise the error of a block; return the losses before and after, and the parameters that stay as they are.

        Args:
            block: with its quantizers, which afterwards drop nothing and have fixed steps.
            caches: quantized input, full-precision input and target, (N, ...) each.
            groups: learned parameters.
            roundings: of the block's weights, if they are learned.
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
            losses, idle = optimise(
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
        }
        facts["iterations"] = len(losses)
        if not self.steps_alone:
            cpu = job.device.type == "cpu" and native.built()
            facts["kernels"] = "compiled" if compiled else "native" if cpu else "plain"
        return facts, idle

    def learns(self, index: int) -> bool:
        """Whether a block is learned; ``reconstruct_stem: false`` leaves out a first block of one layer, the stem."""
        stem = index == 0 and len(self.job.blocks) > 1 and len(attach.weight_layers(self.job.blocks[0])) == 1
        return self.job.hyper.reconstruct_stem or not stem


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A layer of the block at work, with the rounding of its weight and the grid that this was given."""

    name: str
    module: nn.Module
    rounding: Rounding
    given: Grid  # which the rounding may replace

    def weight(self) -> Tensor:
        """Return the full-precision weight below the rounding, as this takes it: in groups, if each has a step."""
        return in_groups(attach.original_weight(self.module), self.rounding.grid.step)

    def nearest(self) -> bool:
        """Whether step and codes are those of round-to-nearest, but for last bits of the step."""
        step, given = self.rounding.final_grid().step, self.given.step
        same = step.shape == given.shape and torch.allclose(step, given, rtol=SAME, atol=0)
        return same and torch.equal(self.returned("codes"), nearest_codes(self.weight(), self.given))

    def on_grid(self) -> bool:
        """Whether the weight as learned is the codes times the step: then it is stored as it is."""
        return torch.equal(self.returned("forward"), self.returned("codes") * self.rounding.final_grid().step)

    def returned(self, call: str) -> Tensor:
        """Return what ``forward`` or ``codes`` of the rounding makes of the weight.

        Raises:
            SettingsError: it has another shape or type than the weight, or changed that; with class and layer.
        """
        weight = self.weight()
        before, where = weight.clone(), f"layer {self.name}: {type(self.rounding).__name__}.{call}"
        found = getattr(self.rounding, call)(weight)
        if not torch.equal(weight, before):
            raise SettingsError(f"{where} changes the weight that it is given; change a clone of it")
        if (shape := getattr(found, "shape", None)) != weight.shape:
            got = type(found).__name__ if shape is None else tuple(shape)
            raise SettingsError(f"{where} returns {got}, its weight has shape {tuple(weight.shape)}; return this shape")
        if call == "forward" and found.dtype != weight.dtype:
            raise SettingsError(f"{where} returns {found.dtype}, its weight is {weight.dtype}; return this type")
        return found.to(weight.dtype)

    def parameters(self) -> set[nn.Parameter]:
        """Return the parameters that the rounding learns.

        Raises:
            SettingsError: its ``groups`` are no lists of parameters by name, or lack one.
        """
        groups, where = self.rounding.groups(), f"layer {self.name}: {type(self.rounding).__name__}.groups"
        lists = list(groups.values()) if isinstance(groups, dict) else [None]
        if not all(isinstance(each, list | tuple) and all(isinstance(p, nn.Parameter) for p in each) for each in lists):
            raise SettingsError(f"{where} returns no lists of nn.Parameter by name, such as {{'all': [self.v]}}")
        found = set(itertools.chain(*lists))
        for name, parameter in self.rounding.named_parameters():
            if parameter.requires_grad and parameter not in found:
                raise SettingsError(f"{where} leaves out {name}; put it into one, or set its requires_grad to False")
        return found

    def moves(self, idle: Set[nn.Parameter] = frozenset(), seen: bool = True) -> bool:
        """Whether the rounding looks at inputs that were ``seen``, or learns parameters that are not all ``idle``."""
        looks = self.rounding.needs_inputs and seen
        return looks or not idle >= self.parameters()


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
        layers = [self._layer(module, special.get(module)) for module in attach.weight_layers(block)]
        record: dict[str, Any] = {"phase": self.name, "block": block.name}
        if job.joint:
            record["inputs"] = self.unquantized(index, quantized)
        record["error_rtn"] = self._attach(index, layers, quantized, target)
        learned, alike = list[str](), False  # whether the block's codes are what was learned
        if self.learns(index):
            seen = self._fit(block, layers, quantized)
            with torch.no_grad():
                for layer in layers:
                    layer.returned("forward")
            idle = {parameter for layer in layers for parameter in layer.parameters()}
            if job.hyper.iters:
                facts, idle = self._learn(block, [layer.rounding for layer in layers], full, quantized, target)
                record |= facts
                alike = all(layer.on_grid() for layer in layers)
                record["error_soft"] = math.nan if alike else self.block_error(block, quantized, target)
            learned = [layer.name for layer in layers if layer.moves(idle, layer.module in seen)]
        if all(layer.nearest() for layer in layers):
            learned = []
        record["learned"] = bool(learned)
        unlearned = [layer for layer in layers if layer.moves() and layer.name not in learned]
        record["nearest"] = [layer.name for layer in unlearned if layer.nearest()]
        record["started"] = [layer.name for layer in unlearned if layer.name not in record["nearest"]]
        found = self._harden(layers)
        if job.joint:
            found |= self.steps(block)
        del full  # a cache less while the output becomes one
        output = self.forward(block, quantized)
        record["error_hard"] = self.error(block, lambda rows, _: on(job.device, output[rows]), target)
        if alike:
            record["error_soft"] = record["error_hard"]
        return found, {"full": target, "quantized": output}, record

    def _layer(self, module: nn.Module, end: End | None) -> _Layer:
        """Make the rounding of a layer at its initial grid."""
        job, hyper, name = self.job, self.job.hyper, self.names[module]
        axes = attach.weight_axes(module)
        assert axes is not None
        axis = None if hyper.w_granularity == "tensor" else axes.output
        scheme = Scheme(job.weight_bits(end), hyper.w_scheme == "symmetric", axis)
        weight = module.weight.detach()  # type: ignore[operator]
        grid = attach.weight_grid(name, weight, scheme, hyper.w_init, hyper.w_init_p, job.group_size(module))
        own = dataclasses.replace(grid, step=grid.step.clone(), zero_point=grid.zero_point.clone())
        rounding = job.rounding(in_groups(weight.clone(), grid.step), own, axes, **job.recipe.options)
        return _Layer(name, module, rounding, grid)

    def _attach(self, index: int, layers: Sequence[_Layer], x: Tensor, target: Tensor) -> float:
        """Put the roundings on their layers; return the block's error on ``x`` (N, ...) at round-to-nearest before.

        There, where every rounding is measured from, the sites of Q are calibrated.
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

    def _fit(self, block: Block, layers: Sequence[_Layer], x: Tensor) -> set[nn.Module]:
        """Show the roundings that ask for them the inputs of their layers for ``x`` (N, ...), one after the other.

        Return the layers that have some: the block may never call a layer, or read its weight without a call.

        Raises:
            NumericalError: a rounding can't make use of it, with the layer.
        """
        seen, inputs = set[nn.Module](), None
        for layer in layers:
            if layer.rounding.needs_inputs:
                if inputs is None or not inputs.serve(layer.module):
                    inputs = LayerInputs(self.job, block, layer.module, x, inputs)
                try:
                    layer.rounding.fit(layer.weight().clone(), inputs)
                except ValueError as error:
                    raise NumericalError(
                        f"layer {layer.name}: {error}; look for them in the checkpoint and the samples"
                    ) from error
                if inputs.any():
                    seen.add(layer.module)
        return seen

    def _learn(
        self, block: Block, roundings: Sequence[Rounding], full: Tensor, quantized: Tensor, target: Tensor
    ) -> tuple[dict[str, Any], set[nn.Parameter]]:
        """Optimise a block; return the losses before and after, and the parameters that stay as they are."""
        job, hyper = self.job, self.job.hyper
        groups = _weight_groups(roundings, job)
        if job.joint:
            groups += self.step_group(block)
        if not any(group.parameters for group in groups):
            return {}, set()
        for number, quantizer in enumerate(attach.quantizers(block) if job.joint else ()):
            quantizer.keep_probability = hyper.keep_probability
            quantizer.generator = job.generator("drop", f"{block.name}/{number}", job.device)
        return self.minimise(block, (quantized, full, target), groups, roundings)

    def _harden(self, layers: Sequence[_Layer]) -> Result:
        """Replace each rounding by its codes times its step, in float32."""
        found: Result = {}
        for layer in layers:
            grid, codes = layer.rounding.final_grid(), layer.returned("codes")
            attach.bake(layer.module, codes * grid.step)
            stored = store_codes(layer.name, codes, grid, layer.given)
            stored = stored.reshape(layer.module.weight.shape)  # type: ignore[arg-type]
            start = layer.given.zero_point
            moved = None if torch.equal(start, grid.zero_point) else start
            found[f"{WEIGHT}{layer.name}"] = Stored(grid, stored, layer.given.step, moved)
        return found


class StepPhase(Phase):
    """B with quantized activations: the steps, after all weights, block by block on full-precision inputs."""

    name = "steps"
    steps_alone = True

    def start(self) -> dict[str, Tensor]:
        return {"full": self.samples, "initial": self.samples[: self.job.hyper.a_init_samples]}

    def learn(self, index: int, carry: dict[str, Tensor]) -> tuple[Result, dict[str, Tensor], dict[str, Any]]:
        hyper, block = self.job.hyper, self.job.blocks[index]
        full, target = carry.pop("full"), carry.pop("target")
        initial = self.before(block, carry.pop("initial"))
        record: dict[str, Any] = {"phase": self.name, "block": block.name, "inputs": self.unquantized(index, initial)}
        initial = self.store.copy(calibrate(self.job, index, initial))
        record["error_rtn"] = self.block_error(block, full, target)  # with the steps that were searched
        record["learned"] = False
        if hyper.a_iters and self.learns(index) and (groups := self.step_group(block)):
            facts, idle = self.minimise(block, (full, full, target), groups)
            record |= facts | {"learned": len(idle) < sum(len(group.parameters) for group in groups)}
        record["error_hard"] = self.block_error(block, full, target)
        return self.steps(block), {"full": target, "initial": initial}, record


def _weight_groups(roundings: Sequence[Rounding], job: Reconstruction) -> list[ParameterGroup]:
    """Return the roundings' parameters by rate and schedule: one fused optimiser call instead of one per layer."""
    merged: dict[tuple[float, str], list[nn.Parameter]] = {}
    for rounding in roundings:
        for name, parameters in rounding.groups().items():
            lr, schedule = (_of_group(key, name, rounding, job) for key in ("lr", "schedule"))
            merged.setdefault((lr, schedule), []).extend(parameters)
    return [ParameterGroup(parameters, lr, schedule) for (lr, schedule), parameters in merged.items() if parameters]


def _of_group(key: str, name: str, rounding: Rounding, job: Reconstruction) -> Any:
    """Return the value of a setting that may be one for all of a rounding's groups, or one for each.

    Raises:
        SettingsError: there is none for this group.
    """
    values = getattr(job.hyper, key)
    if not isinstance(values, dict):
        return values
    if name not in values:
        raise SettingsError(
            f"hyper-parameters of {'/'.join(map(str, job.seed_parts))}: {key} has no value for the group {name!r} of "
            f"{type(rounding).__name__}, only for {', '.join(map(repr, values))}; add it, or give one value for all"
        )
    return values[name]
