"""Released networks in special formats: BRECQ's MobileNetV2, the ONNX zoo's MobileNetV2, llama2.c's stories260K.

llama2.c stores weights and tokenizer in two binary files. The weights start with seven little-endian int32: width,
feed-forward width, layers, heads, key and value heads, vocabulary (negative if head and embedding are not shared),
positions. Then follow float32 tensors: embedding; stacked over layers, attention norm, wq, wk, wv, wo, feed-forward
norm, w1 (gate), w2 (down), w3 (up); final norm; two rotary tables, which are recomputed here; the head if it is not
shared. The tokenizer is an int32, then for each token a float32 score, an int32 length and the token's bytes.
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, processors
from torch import Tensor, nn

from flexround.io.artifacts import write_text
from flexround.models.tokenizer_files import TOKENIZER
from flexround.models.weights import load_into

_UNEXPANDED = "features.1.conv."  # MobileNetV2's only block with two convolutions; other blocks have three
_FLAT_CONV = re.compile(r"(features\.\d+\.conv\.)(\d+)\.(.+)")
CLASSIFIER = "mobilenetv2-12-int8.onnx"  # next to the directory of the other weights
UNKNOWN, BEGIN = 0, 1
HEADER_BYTES = 28
BYTES = 3  # first of the 256 single-byte tokens <0x00> to <0xFF>


def brecq_mobilenetv2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Map the names in BRECQ's release of MobileNetV2 to torchvision's names.

    BRECQ's blocks are flat: repeated (conv, norm, ReLU6) without the last ReLU6. torchvision nests all triples but
    the last. Names outside the blocks are equal.
    """

    def rename(name: str) -> str:
        if (match := _FLAT_CONV.fullmatch(name)) is None:
            return name
        unit, part = divmod(int(match[2]), 3)
        is_last = unit == (1 if match[1] == _UNEXPANDED else 2)
        return f"{match[1]}{unit + part if is_last else f'{unit}.{part}'}.{match[3]}"

    return {rename(name): value for name, value in state.items()}


def import_mobilenetv2(model: Any, directory: Path, _: Path) -> None:
    """Load mobilenetv2-7 of the ONNX model zoo into a ``folded`` network; the classifier's weight is 8-bit.

    ``directory`` has an array for each convolution's weight and bias, named after the graph's nodes, which are in
    module order, and the classifier's bias. The classifier's weight comes from the zoo's 8-bit network next to the
    directory: int8 (1280, 1000) with one scale per class.

    Raises:
        InputError: the weights belong to another network.
    """
    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    numbers = sorted(int(path.name.split("_")[1]) for path in directory.glob("conv_*_weight.npy"))
    state = {
        f"{name}.{kind}": np.load(directory / f"conv_{number}_{kind}.npy")
        for name, number in zip(convolutions, numbers, strict=True)
        for kind in ("weight", "bias")
    }
    state["classifier.1.bias"] = np.load(directory / "gemm_104_bias.npy")
    graph = onnx.load(directory.parent / CLASSIFIER).graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    codes, scale = (arrays[f"classifier.1.weight_{kind}"] for kind in ("quantized", "scale"))
    state["classifier.1.weight"] = (codes.astype(np.float32) * scale).T
    load_into(model, {name: torch.tensor(value) for name, value in state.items()}, str(directory))


def import_stories260k(model: Any, directory: Path, out: Path) -> None:
    """Load stories260K into ``model``, a ``LlamaForCausalLM``, and write its tokenizer to ``out`` in our form."""
    weights = directory / "stories260K.bin"
    numbers = np.frombuffer(weights.read_bytes()[HEADER_BYTES:], "<f4")
    load_into(model, _state(model.config, numbers), str(weights))
    write_text(out / TOKENIZER, tokenizer(directory / "tok512.bin").to_str(pretty=True))


def tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer: it prepends a space and the begin of text, then merges greedily by best score."""
    scores = _scores(path)
    # Merges rank by the score of the merged piece; with equal scores, the first in the text comes first.
    merges = [
        (-score, cut, (piece[:cut], piece[cut:]))
        for piece, score in list(scores.items())[BYTES + 256 :]
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    vocab = {piece: number for number, piece in enumerate(scores)}
    pieces = list(scores)
    made = tokenizers.Tokenizer(
        models.BPE(vocab, [halves for *_, halves in sorted(merges)], unk_token=pieces[UNKNOWN], byte_fallback=True)
    )
    made.normalizer = normalizers.Prepend(" ")
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    begin = pieces[BEGIN]
    made.post_processor = processors.TemplateProcessing(
        single=[begin, "$A"], pair=[begin, "$A", begin, "$B"], special_tokens=[(begin, BEGIN)]
    )
    made.enable_padding(pad_id=UNKNOWN, pad_token=pieces[UNKNOWN])
    return made


def _state(config: Any, content: np.ndarray) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names."""
    width, hidden, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    size, vocabulary = width // config.num_attention_heads, config.vocab_size
    keys = config.num_key_value_heads * size
    shapes = {  # in file order; a name with {} covers all layers
        "model.embed_tokens": (vocabulary, width),
        "model.layers.{}.input_layernorm": (width,),
        "model.layers.{}.self_attn.q_proj": (width, width),
        "model.layers.{}.self_attn.k_proj": (keys, width),
        "model.layers.{}.self_attn.v_proj": (keys, width),
        "model.layers.{}.self_attn.o_proj": (width, width),
        "model.layers.{}.post_attention_layernorm": (width,),
        "model.layers.{}.mlp.gate_proj": (hidden, width),
        "model.layers.{}.mlp.down_proj": (width, hidden),
        "model.layers.{}.mlp.up_proj": (hidden, width),
        "model.norm": (width,),
        "rotary": (2, config.max_position_embeddings, size // 2),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head"] = (vocabulary, width)
    counts = [(layers if "{}" in name else 1) * int(np.prod(shape)) for name, shape in shapes.items()]
    state = {}
    for (name, shape), part in zip(shapes.items(), torch.tensor(content).split(counts), strict=True):
        for layer, tensor in enumerate(part.view(-1, *shape)):
            turned = name.endswith(("q_proj", "k_proj"))
            state[f"{name.format(layer)}.weight"] = halves(tensor, size) if turned else tensor
    del state["rotary.weight"]
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


def halves(weight: Tensor, size: int) -> Tensor:
    """Reorder the rows of a query or key projection, shape (heads * size, width).

    llama2.c rotates pairs of neighbouring rows of a head; Hugging Face pairs rows of its first and second half.
    """
    return weight.view(-1, size // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _scores(path: Path) -> dict[str, float]:
    """Return each token's score, in id order."""
    content, start, scores = path.read_bytes(), 4, {}
    while start < len(content):
        score, length = struct.unpack_from("<fi", content, start)
        (piece,) = struct.unpack_from(f"{length}s", content, start + 8)
        scores[piece.decode()] = score
        start += 8 + length
    return scores
