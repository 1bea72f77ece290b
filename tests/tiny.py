"""One small network of each family of transformers."""

import torch

from flexround.models import transformer

SMALL = {"vocab_size": 50, "hidden_size": 16, "max_position_embeddings": 12}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
SIZES = {
    "bert": SMALL | LAYERS | {"intermediate_size": 24},
    "gpt_neo": SMALL
    | {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 3}
    | {"intermediate_size": 24, "pad_token_id": 0},
    "opt": SMALL | LAYERS | {"ffn_dim": 24},
    "gpt2": {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12},
    "llama": SMALL | LAYERS | {"intermediate_size": 24},
}


def make(kind, head=None, seed=1, **config):
    """Return a network of one thread; its head is a language model's unless it is a BERT or one is named."""
    torch.set_num_threads(1)
    head = head or ("classification" if kind == "bert" else "causal-lm")
    return getattr(transformer, kind)(head, seed=seed, **SIZES[kind] | config)
