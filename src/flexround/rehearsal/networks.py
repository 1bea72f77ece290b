"""Stand-ins of released checkpoints: small networks with random weights under the real names, in the real files."""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.serialization import save_torch_state_dict
from torch import Tensor, nn

from flexround import imports
from flexround.rehearsal import tokenizers
from flexround.settings.schema import Checkpoint
from flexround.settings.sources import Source

RANK = 4  # of microsoft/LoRA's released adapters
SHARDS = 3
# What config.json of the repositories says beside the sizes: old keys, and whole numbers where the library has floats.
OLD = {"gradient_checkpointing": False, "torch_dtype": "float16", "transformers_version": "4.6.0.dev0"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": {"position_embedding_type": "absolute"},
    "gpt_neo": {"attention_dropout": 0, "embed_dropout": 0, "resid_dropout": 0, "tokenizer_class": "GPT2Tokenizer"},
    "opt": {"activation_dropout": 0.0, "prefix": "</s>"},
    "gpt2": {"n_ctx": 1024, "n_special": 0, "predict_special_tokens": True},
    "llama": {"pad_token_id": 0, "rope_scaling": None},
}
State = dict[str, Tensor]


def write(checkpoint: Checkpoint, source: Source, path: Path) -> None:
    """Write the weights that a checkpoint starts from to ``path``, a file or a Hugging Face directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if source.files:
        path.mkdir()
        _directory(checkpoint, source.files, path)
        return
    model = imports.load(checkpoint.model.factory)(**checkpoint.model.args)
    # BRECQ's files are of an older PyTorch; that of its MobileNetV2 holds a training script's whole checkpoint.
    if checkpoint.key_map:
        torch.save({"model": _flat(model), "epoch": 149}, path, _use_new_zipfile_serialization=False)
    else:
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=path.suffix != ".tar")


def write_adapter(checkpoint: Checkpoint, _: Source, path: Path) -> None:
    """Write a LoRA adapter of a GPT-2 as microsoft/LoRA releases them: A and B of query and value of every layer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, layers = checkpoint.model.args["n_embd"], checkpoint.model.args["n_layer"]
    generator = torch.Generator().manual_seed(0)
    state = {}
    for layer in range(layers):
        name = f"module.transformer.h.{layer}.attn.c_attn.lora_"
        state[f"{name}A"] = 0.02 * torch.randn(2 * RANK, width, generator=generator)
        state[f"{name}B"] = 0.02 * torch.randn(2 * width, RANK, generator=generator)
    torch.save({"model_state_dict": state}, path)


def _directory(checkpoint: Checkpoint, files: tuple[str, ...], directory: Path) -> None:
    """Write a Hugging Face directory: configuration, tokenizer, weights in the form that ``files`` names."""
    factory = imports.load(checkpoint.model.factory)
    kind = factory.__name__
    model = factory(head="pretraining" if kind == "bert" else "causal-lm", **checkpoint.model.args)
    configuration = checkpoint.model.args | OLD | CONFIGURATIONS[kind] | {"model_type": kind}
    (directory / "config.json").write_text(json.dumps(configuration, indent=2, sort_keys=True))
    tokenizers.write(kind, files, directory)
    state = {"bert": _bert, "gpt_neo": _gpt_neo, "gpt2": _gpt2, "opt": _opt, "llama": _llama}[kind](model)
    if "pytorch_model.bin" in files:
        torch.save(state, directory / "pytorch_model.bin")
    else:
        shards = 1 if "model.safetensors" in files else SHARDS
        size = sum(value.nbytes for value in state.values()) // shards
        save_torch_state_dict(state, directory, max_shard_size=size)


def _state(model: nn.Module) -> State:
    """Return copies of a model's tensors, each of its shape: safetensors refuses tied ones."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _bert(model: nn.Module) -> State:
    """Name norms as BERT's first files do; the decoder is tied to the words and left out."""
    state = {}
    for name, value in _state(model).items():
        if not name.startswith("cls.predictions.decoder."):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            state[old] = value
    return state


def _gpt_neo(model: Any) -> State:
    """Add the causal masks that its files hold; the head is tied and left out."""
    state = _state(model)
    del state["lm_head.weight"]
    positions = model.config.max_position_embeddings
    for layer in range(len(model.transformer.h)):
        name = f"transformer.h.{layer}.attn.attention."
        state[f"{name}bias"] = torch.ones(1, 1, positions, positions, dtype=torch.bool).tril()
        state[f"{name}masked_bias"] = torch.tensor(-1e9)
    return state


def _gpt2(model: Any) -> State:
    """Name tensors without the prefix and add the causal masks; the head is tied and left out."""
    state = {name.removeprefix("transformer."): value for name, value in _state(model).items() if "lm_head" not in name}
    positions = model.config.n_positions
    for layer in range(len(model.transformer.h)):
        state[f"h.{layer}.attn.bias"] = torch.ones(1, 1, positions, positions).tril()
    return state


def _opt(model: nn.Module) -> State:
    """Keep half precision and the tied head, as OPT's files do."""
    return {name: value.half() for name, value in _state(model).items()}


def _llama(model: Any) -> State:
    """Keep half precision, and hold the rotary frequencies of each layer, as files of the first converter do."""
    state = {name: value.half() for name, value in _state(model).items()}
    frequencies = model.model.rotary_emb.inv_freq
    names = (f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(len(model.model.layers)))
    return state | {name: frequencies.clone() for name in names}


def _flat(model: Any) -> State:
    """Name the tensors of a MobileNetV2 as BRECQ does, each block a flat sequence of layers."""
    flat: State = {}
    for name, layers in (("features", model.features), ("classifier", [model.classifier])):
        for index, module in enumerate(layers):
            leaves = [layer for layer in module.modules() if not list(layer.children())]
            inner = "" if isinstance(module, nn.Sequential) else "conv."
            prefix = f"features.{index}.{inner}" if name == "features" else "classifier."
            for place, leaf in enumerate(leaves):
                flat |= {f"{prefix}{place}.{key}": value for key, value in leaf.state_dict().items()}
    return flat
