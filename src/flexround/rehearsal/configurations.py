"""``config.json`` as the networks' repositories have it: old keys, and whole numbers where a library has floats."""

from typing import Any

_SUMMARY = {
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
}
# What the files say beside the sizes; those and the other numbers that say which network it is come from the model.
FILES: dict[str, dict[str, Any]] = {
    "bert": {
        "architectures": ["BertForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0",
        "use_cache": True,
    },
    "gpt_neo": {
        "activation_function": "gelu_new",
        "architectures": ["GPTNeoForCausalLM"],
        "attention_dropout": 0,
        "embed_dropout": 0,
        "gradient_checkpointing": False,
        "initializer_range": 0.02,
        "intermediate_size": None,
        "layer_norm_epsilon": 1e-05,
        "resid_dropout": 0,
        "tokenizer_class": "GPT2Tokenizer",
        "transformers_version": "4.9.0.dev0",
        "use_cache": True,
        **_SUMMARY,
    },
    "opt": {
        "_remove_final_layer_norm": False,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "init_std": 0.02,
        "layerdrop": 0.0,
        "pad_token_id": 1,
        "prefix": "</s>",
        "torch_dtype": "float16",
        "transformers_version": "4.21.0.dev0",
        "use_cache": True,
    },
    "gpt2": {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "n_special": 0,
        "predict_special_tokens": True,
        "resid_pdrop": 0.1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        **_SUMMARY,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.31.0.dev0",
        "use_cache": True,
    },
}
SIZES: dict[str, tuple[str, ...]] = {
    "bert": ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "type_vocab_size"),
    "gpt_neo": ("attention_layers", "attention_types", "hidden_size", "num_heads", "num_layers", "window_size"),
    "opt": ("ffn_dim", "hidden_size", "num_attention_heads", "num_hidden_layers", "word_embed_proj_dim"),
    "gpt2": ("n_embd", "n_head", "n_layer", "n_positions"),
    "llama": ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
}
POSITIONS = {"gpt2": "n_ctx"}  # what a file calls them beside n_positions
BEGUN = ("gpt_neo", "opt", "gpt2", "llama")  # their files name the tokens of begin and end


def file(kind: str, config: Any) -> dict[str, Any]:
    """Return what ``config.json`` of a kind of network (bert, gpt_neo, opt, gpt2, llama) says, with a model's sizes."""
    names = [*SIZES[kind], "vocab_size", *(("bos_token_id", "eos_token_id") if kind in BEGUN else ())]
    sizes = {name: getattr(config, name) for name in names}
    sizes[POSITIONS.get(kind, "max_position_embeddings")] = config.max_position_embeddings
    return dict(sorted((FILES[kind] | sizes | {"model_type": kind}).items()))
