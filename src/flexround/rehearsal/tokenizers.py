"""Small tokenizers in the forms in which the networks' repositories have them."""

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from flexround.rehearsal.scale import VOCABULARY
from flexround.settings.layout import PARAMS

TEXTS = PARAMS / "data/ptb/ptb.train.txt"
MINI = {"bert": "bert-base", "gpt2": "gpt2-medium", "gpt_neo": "gpt-neo-125m"}  # whose tokenizers have the real form
OPT = ("<s>", "<pad>", "</s>", "<unk>")
LLAMA = ("<unk>", "<s>", "</s>")


def write(kind: str, files: tuple[str, ...], directory: Path) -> None:
    """Write those of ``files`` that belong to the tokenizer of a kind of network: bert, gpt2, gpt_neo, opt, llama."""
    made = tokenizer(kind)
    if "tokenizer.json" in files:
        made.save(str(directory / "tokenizer.json"))
    if "vocab.json" in files:
        made.model.save(str(directory))
    if "tokenizer_config.json" in files:
        names = {"bos_token": OPT[2], "eos_token": OPT[2], "unk_token": OPT[2], "pad_token": OPT[1]}
        config = {"add_bos_token": True, "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"}
        (directory / "tokenizer_config.json").write_text(json.dumps(config | names))
        (directory / "special_tokens_map.json").write_text(json.dumps(names))


@functools.cache
def tokenizer(kind: str) -> tokenizers.Tokenizer:
    """Return the tokenizer of a kind of network; nothing pads, as in the repositories."""
    if kind in MINI:
        made = tokenizers.Tokenizer.from_file(str(PARAMS / "networks" / MINI[kind] / "tokenizer.json"))
        made.no_padding()
        return made
    return _opt() if kind == "opt" else _llama()


def _opt() -> tokenizers.Tokenizer:
    """Train OPT's: GPT-2's pieces of bytes after four special tokens."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _train(made, OPT, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    return made


def _llama() -> tokenizers.Tokenizer:
    """Train LLaMA's as converted to ``tokenizer.json``: words after "▁", unknown ones by their bytes, begun by <s>."""
    made = tokenizers.Tokenizer(models.BPE(unk_token=LLAMA[0], fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    _train(made, (*LLAMA, *(f"<0x{byte:02X}>" for byte in range(256))))
    state = json.loads(made.to_str())
    # Of these the special ones alone are added tokens; the bytes are ordinary words of the vocabulary.
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in LLAMA]
    made = tokenizers.Tokenizer.from_str(json.dumps(state))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return made


def _train(made: tokenizers.Tokenizer, special: tuple[str, ...], **options: Any) -> None:
    """Train a tokenizer whose first tokens are the special ones."""
    options |= {"vocab_size": VOCABULARY, "special_tokens": list(special), "show_progress": False}
    made.train_from_iterator(TEXTS.read_text().splitlines()[:300], trainers.BpeTrainer(**options))
