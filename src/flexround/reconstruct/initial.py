"""The initial steps of a block's activation quantizers, from the first calibration rows."""

import torch
from torch import Tensor

from flexround.errors import SettingsError
from flexround.models.blocks import Block
from flexround.models.surgery import attach
from flexround.models.tensors import Largest
from flexround.quant.activation import TokenQuantizer
from flexround.quant.grid import Scheme
from flexround.reconstruct.cache import on, slices
from flexround.reconstruct.inputs import ends
from flexround.reconstruct.reconstruction import Reconstruction

AT_ONCE = 2**31  # bytes of a pass's largest tensor, below which all initial rows go through a block together


@torch.no_grad()
def calibrate(job: Reconstruction, index: int, x: Tensor) -> Tensor:
    """Set the initial steps of a block's sites on ``x`` (n, ...), each on quantized inputs; return the output.

    Raises:
        SettingsError: the block never calls a site on ``x``.
    """
    hyper, block = job.hyper, job.blocks[index]
    parts, special = _parts(job, block, x), ends(job, index, x)
    masks = [job.mask_of(rows) for rows in parts]
    kept = masks if hyper.mask_padding else [None] * len(parts)
    waiting: dict[attach.Observer, Tensor] = {}  # observers without a step in the current part
    for site in block.sites:
        scheme = Scheme(job.activation_bits(special.get(site)), hyper.a_scheme == "symmetric")
        own = (kept[0], None) if len(parts) == 1 else (None, waiting)
        observer = attach.Observer(scheme, hyper.a_init, hyper.a_init_p, *own)
        attach.attach_quantizer(site, TokenQuantizer(scheme) if hyper.a_granularity == "token" else observer)
    outputs: list[Tensor] = []
    while len(outputs) < len(parts):  # one part needs one pass, several need one per site and one for the output
        outputs, behind, seen = [], list[attach.Observer](), dict[attach.Observer, list[Tensor]]()
        for rows, mask, tokens in zip(parts, masks, kept, strict=True):
            waiting.clear()
            with job.products():
                output = block(on(job.device, x[rows]), mask)
            if waiting:
                (first, given), *_ = waiting.items()
                seen.setdefault(first, []).append(given if tokens is None else attach.real(given, tokens))
                behind += [*waiting][1:]
            else:
                outputs.append(output)
        if seen:  # parts may skip sites: the next site follows no other site in any part
            following = min(seen, key=behind.count)
            following.fix(torch.cat(seen[following]))
    for site in block.sites:
        quantizer = attach.attached_quantizer(site)
        if isinstance(quantizer, attach.Observer):
            if quantizer.quantizer is None:
                name = next(name for name, module in job.model.named_modules() if module is site.module)
                raise SettingsError(
                    f"block {block.name}: {name} is not called in the {len(x)} initial rows, so the step of its "
                    f"{site.where} has no start; raise a_init_samples, or leave the site out of the block's sites"
                )
            attach.attach_quantizer(site, quantizer.quantizer)
    return outputs[0] if len(parts) == 1 else torch.cat(outputs)


def _parts(job: Reconstruction, block: Block, x: Tensor) -> list[slice]:
    """Return slices of ``x`` (n, ...) that go through a block at once: all rows, or batches if memory is too small."""
    with job.products(), Largest(block.module) as found:
        block(on(job.device, x[:1]), job.mask_of(slice(1)))
    return slices(len(x), job.hyper.batch if len(x) * found.bytes > AT_ONCE else len(x))
