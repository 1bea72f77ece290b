"""Models in the format of llama2.c: weights in one binary file, the tokenizer in another.

The weights: seven little-endian int32 (width, feed-forward width, layers, heads, key and value heads, vocabulary, which
is negative where the head is not shared with the embedding, positions), then float32 tensors: embedding; for all layers
together each of attention norm, wq, wk, wv, wo, feed-forward norm, w1 (gate), w2 (down), w3 (up); final norm; two
rotary tables that are computed anew here; the head if it is not shared.
The tokenizer: int32, then for each token float32 score, int32 length and its bytes.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, processors
from torch import Tensor

from flexround.errors import InputError
from flexround.io.artifacts import write_text
from flexround.models import tokenizer_files
from flexround.models.checkpoints import load_into
from flexround.models.tokenizer_files import TOKENIZER

UNKNOWN, BEGIN = 0, 1
HEADER = (  # its numbers, by Hugging Face's names
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings"),
)
BYTES = 3  # the first of the 256 tokens of single bytes, <0x00> to <0xFF>


def import_stories260k(model: Any, directory: Path, out: Path) -> None:
    """Load stories260K into ``model``, a ``LlamaForCausalLM``, and put its tokenizer into ``out`` in our form.

    Raises:
        InputError: missing or damaged files, another architecture, or a tokenizer of another model.
    """
    weights, tokens = directory / "stories260K.bin", directory / "tok512.bin"
    load_into(model, _state(model.config, _read(model.config, weights), weights), str(weights))
    made = tokenizer(tokens, model.config.vocab_size)
    tokenizer_files.check_begin(model, made, tokens)
    write_text(out / TOKENIZER, made.to_str(pretty=True))


def tokenizer(path: Path, vocabulary: int) -> tokenizers.Tokenizer:
    """Return the tokenizer: a space and the begin of text in front, then greedy merges by the best score.

    Raises:
        InputError: missing or damaged, or without ``vocabulary`` tokens.
    """
    scores = _scores(path, vocabulary)
    # A merge is as good as the score of what it makes, and of one score, whatever its halves, the first in the text.
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


def _read(config: Any, path: Path) -> np.ndarray:
    """Return everything behind the header as float32 (N,); InputError, with all differences, for other settings."""
    content = _bytes(path)
    if len(content) < 28:
        raise InputError(f"{path}: {len(content)} bytes are no llama2.c model; fetch it again")
    found: dict[str, int] = dict(zip(HEADER, struct.unpack("<7i", content[:28]), strict=True))
    found |= {"tie_word_embeddings": found["vocab_size"] > 0, "vocab_size": abs(found["vocab_size"])}
    differences = [
        f"{name} is {value}, the settings say {getattr(config, name)}"
        for name, value in found.items()
        if getattr(config, name) != value
    ]
    if differences:
        raise InputError(f"{path}: {'; '.join(differences)}; correct the model's arguments in params/scales")
    return np.frombuffer(content[28 : len(content) // 4 * 4], "<f4")


def _state(config: Any, content: np.ndarray, path: Path) -> dict[str, Tensor]:
    """Return the weights by Hugging Face's names."""
    width, hidden, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    size, vocabulary = width // config.num_attention_heads, config.vocab_size
    keys = config.num_key_value_heads * size
    shapes = {  # in the order of the file; a name with {} stands for all layers
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
    counts = {name: (layers if "{}" in name else 1) * int(np.prod(shape)) for name, shape in shapes.items()}
    if len(content) != sum(counts.values()):
        raise InputError(f"{path}: {len(content)} weights, its header tells of {sum(counts.values())}; fetch it again")
    state, start = {}, 0
    for name, shape in shapes.items():
        tensors = torch.tensor(content[start : start + counts[name]]).view(-1, *shape)
        start += counts[name]
        for layer, tensor in enumerate(tensors):
            state[f"{name.format(layer)}.weight"] = (
                halves(tensor, size) if name.endswith(("q_proj", "k_proj")) else tensor
            )
    del state["rotary.weight"]
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    return state


def halves(weight: Tensor, size: int) -> Tensor:
    """Reorder the rows of a query or key projection, shape (heads * size, width).

    llama2.c turns neighbouring rows of a head together, Hugging Face rows of its first and its second half.
    """
    return weight.view(-1, size // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _scores(path: Path, vocabulary: int) -> dict[str, float]:
    """Return each token's score, in the order of their ids."""
    content, start, scores = _bytes(path), 4, {}
    try:
        while start < len(content):
            score, length = struct.unpack_from("<fi", content, start)
            (piece,) = struct.unpack_from(f"{length}s", content, start + 8)
            scores[piece.decode()] = score
            start += 8 + length
    except (struct.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a llama2.c tokenizer ({error}); fetch it again") from error
    if len(scores) != vocabulary:
        raise InputError(f"{path}: {len(scores)} different tokens, the model has {vocabulary}; fetch both again")
    return scores


def _bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error}); put the file there") from error
