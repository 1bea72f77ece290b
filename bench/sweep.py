"""Quantize, save, load and export networks of timm and transformers with the library, each in its own process.

    pip install timm    # in your own environment: the project does not depend on timm
    OMP_NUM_THREADS=1 python bench/sweep.py    # --kind timm; --only resnet18; --only 'swin*'

Weights are random, inputs small. Each line says taken, refused or WRONG. WRONG gives exit code 1; it means a traceback,
a layer without warning, 8-bit weights far from an independent rounding, or a loaded or exported network that differs.
"""

import argparse
import collections
import fnmatch
import multiprocessing
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import flexround
from flexround.errors import InputError
from flexround.models.tensors import tensors

TIMM = """resnet18 resnet50d resnext50_32x4d seresnet50 resnetv2_50 res2net50_26w_4s efficientnet_b0 densenet121
tf_efficientnetv2_b0 mobilenetv2_100 mobilenetv3_large_100 mobilenetv4_conv_small semnasnet_075 lcnet_050 ghostnet_100
regnetx_002 regnety_002 inception_v3 xception41 dpn48b dla34 hrnet_w18_small repvgg_a0 mobileone_s0 ese_vovnet19b_dw
darknet53 nf_regnet_b1 convnext_atto convnextv2_atto vit_tiny_patch16_224 deit_tiny_patch16_224 eva02_tiny_patch14_224
vit_small_patch16_dinov3 swin_tiny_patch4_window7_224 cait_xxs24_224 xcit_nano_12_p16_224 coat_tiny crossvit_tiny_240
pvt_v2_b0 levit_128s mixer_s32_224 poolformer_s12 caformer_s18 edgenext_xx_small mobilevit_xxs efficientformer_l1
efficientvit_b0 fastvit_t8 maxvit_rmlp_pico_rw_256 sequencer2d_s"""
HEADS = {  # heads of transformers classes
    "ForCausalLM": "Llama Qwen2 Qwen3 Qwen2Moe Mistral Mixtral Phi Phi3 Gemma2 Gemma3 GPTJ GPTNeo OPT Bloom Mamba",
    "ForMaskedLM": "Bert Roberta DistilBert Electra DebertaV2 Albert ModernBert",
    "ForImageClassification": "ViT DeiT Dinov2 Beit Swin ConvNext",
    "": "FalconForCausalLM GPT2LMHeadModel GPTNeoXForCausalLM Olmo2ForCausalLM T5EncoderModel CLIPVisionModel",
}
SIZES: dict[str, Any] = {  # each class of transformers takes its own keys
    **{"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
    **{"max_position_embeddings": 64, "num_key_value_heads": 2, "pad_token_id": 0, "window_size": 4, "patch_size": 8},
    **{"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "d_kv": 8},
    **{"shared_expert_intermediate_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32, "rotary_dim": 4, "d_ff": 64},
    **{"embedding_size": 16, "image_size": 32, "hidden_dim": 64, "attention_types": [[["global", "local"], 1]]},
    **{"embed_dim": 16, "depths": [1, 2], "hidden_sizes": [16, 32], "num_stages": 2, "num_labels": 10},
}
RECIPES = {1: "q-flexround-w4a4", 6: "q-flexround-w8a8"}  # by the sum of a name's letters modulo 8
FEW = {"progress": False, "device": "cpu", "iters": 2, "a_iters": 2, "a_init_samples": 4}
EIGHT = flexround.Recipe(setting="B", rounding="rtn", w_bits=8, hyper={"w_granularity": "channel"})


def network(name: str) -> tuple[Callable[[], nn.Module], Tensor]:
    """Return a constructor of a network with random weights, and inputs: images (12, 3, S, S) or token ids (12, 16)."""
    if kind := getattr(transformers, name, None):
        sizes = SIZES | ({"num_attention_heads": [2, 2], "patch_size": 4} if "Swin" in name else {})
        x = torch.randn(12, 3, 32, 32) if kind.main_input_name == "pixel_values" else torch.randint(64, (12, 16))
        return lambda: kind(kind.config_class(**sizes)).eval(), x
    size = {"inception_v3": 96, "efficientformer_l1": 224, "crossvit_tiny_240": 240}.get(name, 64)
    import timm

    def build() -> nn.Module:
        try:
            return timm.create_model(name, num_classes=10, img_size=size).eval()
        except TypeError:
            return timm.create_model(name, num_classes=10).eval()

    return build, torch.randn(12, 3, size, size)


@torch.no_grad()
def lively(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a model with noise on each parameter (some start at zero) and with batch norm statistics from x."""
    for value in model.parameters():
        value.add_(torch.randn_like(value) * (0.1 if value.ndim < 2 else 0.02))
    torch.optim.swa_utils.update_bn([x], model)
    for value in (one for key, one in model.named_buffers() if key.endswith(("running_mean", "running_var"))):
        value.mul_(torch.empty_like(value).uniform_(0.7, 1.5)).add_(1e-3)
    return model


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return all floats of a model's output for ``x`` in one row."""
    return torch.cat([one.flatten() for one in tensors(model(x)) if one.is_floating_point()])


def off(found: Tensor, wanted: Tensor) -> float:
    """Return the distance of two rows, divided by the norm of the second; inf for NaN."""
    return float(((found - wanted).norm() / wanted.norm()).nan_to_num(torch.inf))


def layers(model: nn.Module) -> dict[str, Any]:
    """Return the linears and convolutions of a model by name."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd, transformers.pytorch_utils.Conv1D)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def unnamed(found: flexround.Quantized) -> list[str]:
    """Return the layers that are neither quantized nor reported as left in floating point."""
    clause = " ".join(one for one in found.origin.left if one.startswith("in floating point"))
    named, more = re.findall(r"[\w.]+", clause), sum(map(int, re.findall(r"and (\d+) more", clause)))
    left = sorted(layers(found.model).keys() - found.codes())
    return [name for name in left if not any(f"{one}.".startswith(f"{name}.") for one in named)][more:]


def exported(kind: str, found: flexround.Quantized, x: Tensor, directory: Path) -> Tensor:
    """Export a network; return the output for inputs ``x`` from the tool that reads the file."""
    name = getattr(found.model, "main_input_name", None)
    path = found.export(kind, directory, *([{name: x[:2]} if name else x[:2]] if kind == "onnx" else []))
    if kind == "onnx":
        session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]).flatten()
    if kind == "compressed-tensors":
        return outputs(transformers.AutoModelForCausalLM.from_pretrained(path).eval(), x)
    for value in found.model.state_dict().values():
        value.fill_(torch.nan if value.is_floating_point() else 0)
    for file in path.glob("*.safetensors"):
        found.model.load_state_dict(load_file(file), strict=False)
    return outputs(found.model, x)


def problems(name: str, recipe: str, notes: list[str], scratch: Path) -> Iterator[str]:
    """Yield the problems of a network; add its blocks and exports to ``notes``. Errors are the library's."""
    torch.manual_seed(0)
    build, x = network(name)
    model, samples, fresh = lively(build(), x), x[:8], x[8:11]
    causal, activations = name.endswith(("CausalLM", "LMHeadModel")), "a" in recipe[-3:]
    settings: dict[str, Any] = FEW | ({"w_scheme": "symmetric"} if causal else {})
    before, found = outputs(model, fresh), flexround.quantize(model, samples, recipe, **settings)
    after, saved = outputs(found.model, fresh), found.save(scratch / "saved")
    notes[0] = f"{len(found.report)} blocks, {recipe}"
    yield from (f"in no warning: {one}" for one in unnamed(found))
    if wrong := off(outputs(flexround.load(saved, build()).model, fresh), after):
        yield f"loaded: {wrong:.2g} off"
    eight = off(outputs(flexround.quantize(model, samples, EIGHT, **settings).model, fresh), before)
    for weight in (layer.weight.data for layer in layers(model).values()):  # a step for each row
        steps, zeros = weight.abs().flatten(1).amax(1) / 127, torch.zeros(len(weight), dtype=torch.int32)
        weight.copy_(torch.fake_quantize_per_channel_affine(weight, steps, zeros, 0, -127, 127))
    most = 3 * off(outputs(model, fresh), before) + 1e-3
    notes.append(f"8 bit {eight:.1g}")
    if not most > eight > 0 or off(after, before) in (0, torch.inf):
        yield f"{off(after, before):.2g} off, with 8 bit {eight:.2g} where {most:.2g} is the most"
    first = [] if recipe.endswith("a4") else ["compressed-tensors"] if causal else ["onnx"]
    for kind in first if activations else [*first, "torch"]:
        try:
            given = exported(kind, found, fresh, scratch / kind)
        except InputError as refusal:
            notes.append(f"{kind} refused: {refusal}")
            continue
        notes.append(f"{kind} {off(given, after[: len(given)]):.0e}")
        if off(given, after[: len(given)]) > (0.1 if activations else 1e-3):  # codes of activations may jump
            yield notes[-1]


def outcome(name: str, recipe: str) -> tuple[str, list[str]]:
    """Return the outcome of one network with notes; libraries' output is discarded."""
    nowhere, notes, wrong = os.open(os.devnull, os.O_WRONLY), [""], list[str]()
    os.dup2(nowhere, 1), os.dup2(nowhere, 2)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            wrong.extend(problems(name, recipe, notes, Path(scratch)))
        except Exception as error:
            if isinstance(error, InputError) and not notes[0]:
                return "refused", [str(error)]
            places = re.findall(r"/(flexround/.*)\", line (\d+)", traceback.format_exc()) or [""]
            wrong.append(f"{type(error).__name__}: {error} {places[-1]}")
    return "WRONG" if wrong else "taken", [*wrong, *filter(None, notes)]


def main() -> None:
    """Print a line for each network, and at the end the number of networks with each outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("timm", "transformers"))
    parser.add_argument("--only", default="*", help="a pattern for the names listed here, or any name of timm")
    given = parser.parse_args()
    listed = {"timm": TIMM.split(), "transformers": [name + head for head in HEADS for name in HEADS[head].split()]}
    asked = [name for kind, names in listed.items() if given.kind in (None, kind) for name in names]
    counted, context = collections.Counter[str](), multiprocessing.get_context("fork")
    for name in fnmatch.filter(asked, given.only) or [given.only]:
        start, recipe = time.monotonic(), RECIPES.get(sum(map(ord, name)) % 8, "b-flexround-w4")
        with context.Pool(1) as pool:
            try:
                kind, notes = pool.apply_async(outcome, (name, recipe)).get(240)
            except multiprocessing.TimeoutError:
                kind, notes = "WRONG", ["takes too long, or the process died"]
        counted[kind] += 1
        print(f"{name}: {kind}, {time.monotonic() - start:.0f} s: {'; '.join(notes)}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counted.items()))
    raise SystemExit(counted["WRONG"] > 0)


if __name__ == "__main__":
    main()
