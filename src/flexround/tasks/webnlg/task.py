"""WebNLG 2017, sentences from triples: LoRA fine-tuning of a GPT-2, beam search and BLEU (table 6; specification 8).

An example is the triples as text, a separator, the sentence after a space, and the end of text; the separator is the
end of text too. Only sentence and end are learned.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from flexround.errors import InputError, SettingsError
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks.protocol import Evaluation, Split, draw_indices
from flexround.tasks.text import encode, lora_training
from flexround.tasks.text import task as text
from flexround.tasks.text import training as text_training
from flexround.tasks.text.encode import Encoded
from flexround.tasks.webnlg import beam, bleu
from flexround.tasks.webnlg import files as webnlg_files
from flexround.tasks.webnlg.options import WebNLGOptions, WebNLGTrainSettings

END = "<|endoftext|>"
BLANK_LINE = "ĊĊ"  # ends a sentence too, in GPT-2's spelling of bytes; mini vocabularies have no such token
PROMPTS = 16  # decoded at once: each has ten beams in the cache


class WebNLG(text.TextTask):
    """Generation of sentences from triples."""

    options: WebNLGOptions
    head = {"head": "causal-lm"}

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the training and the test set, one row per context."""
        root = sources / self.options.root
        return {split: webnlg_files.unique_contexts(webnlg_files.read(root, split)) for split in ("train", "test")}

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training sentences with contexts, none held out; int64 (samples,) indices, see ``packed``."""
        entries = text.read_rows(data, "train")
        kept, _ = self.parts(len(entries))
        rows = webnlg_files.training_rows([entries[index] for index in kept])
        indices = draw_indices(len(rows), samples, seed)
        return text.packed(indices, [json.dumps(rows[index], ensure_ascii=False) for index in indices])

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        """Return one input per training row; its types are 1 where a token of the sentence or its end stands.

        Source: microsoft/LoRA, examples/NLG/src/gpt2_encode.py and data_utils.py.

        Raises:
            InputError: a context leaves no room for its sentence.
        """
        tokenizer, end = _load_tokenizer(network)
        prompts, length = _prompt_ids(tokenizer, end, rows), self.options.max_length
        sentences = _token_ids(tokenizer, [f" {row['reference']}" for row in rows])
        encoded = Encoded(*(np.zeros((len(rows), length), kind) for kind in (np.int32, np.int8, bool)))
        for index, (prompt, sentence) in enumerate(zip(prompts, sentences, strict=True)):
            if len(prompt) >= length:
                raise InputError(f"max_length={length} has no room for what {rows[index]['context']!r} says; raise it")
            ids = [*prompt, *sentence, end][:length]
            encoded.ids[index, : len(ids)] = ids
            encoded.types[index, len(prompt) : len(ids)] = 1
            encoded.mask[index, : len(ids)] = True
        return encoded

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train adapters of ``model`` and merge them; see ``WebNLGTrainSettings`` and ``adapt``.

        The base model's own dropout is that of its configuration; the published recipe has none.
        """
        checked = validate(WebNLGTrainSettings, settings, "train settings of WebNLG")
        encode.check_positions(model, self.options.max_length)
        tokenizer_files.check_vocabulary(model, _load_tokenizer(network)[0], network / TOKENIZER)
        arrays = vars(self.encode(webnlg_files.training_rows(text.read_rows(data, "train")), network))

        def loss(model: Any, batch: dict[str, Tensor], _: torch.Generator) -> Tensor:
            return completion_loss(model, text.arguments(batch), checked.label_smoothing)

        adapted = adapt(model, checked)
        facts = text_training.train(model, arrays, loss, checked, lambda batch: (batch["types"][:, 1:] == 1).sum())
        lora_training.merge(adapted)
        return {"settings": checked.model_dump(mode="json"), **facts}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return BLEU in percent as ``unseen``, ``seen`` and ``all``; of held-out rows only ``all``.

        The predictions are the generated token ids, int32 (N, steps), -1 where there is none.
        """
        rows = self.split_rows(data, split, "test")
        tokenizer, end = _load_tokenizer(network)
        prompts, blank_line = _prompt_ids(tokenizer, end, rows), tokenizer.token_to_id(BLANK_LINE)
        eos = [end] if blank_line is None else [end, blank_line]
        generated = beam.search(model, prompts, self.options, eos, min(batch, PROMPTS))
        texts = tokenizer.decode_batch(generated, skip_special_tokens=False)
        seen = np.array([row["seen"] for row in rows])
        scored = bleu.scores(texts, [row["references"] for row in rows], seen)
        if split == "heldout":  # only what settings are chosen by
            scored = {"all": scored["all"]}
        tokens = np.array([ids + [-1] * (self.options.steps - len(ids)) for ids in generated], np.int32)
        return text.evaluation(scored, {f"{split}/tokens": tokens})


def _load_tokenizer(network: Path) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a network, which neither pads nor cuts, and the id of its end of text."""
    tokenizer = tokenizer_files.load(network / TOKENIZER)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if (end := tokenizer.token_to_id(END)) is None:
        raise InputError(f"{network / TOKENIZER}: has no {END}, the separator; take a GPT-2 and its tokenizer")
    return tokenizer, end


def _token_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text, with nothing added."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _prompt_ids(tokenizer: Tokenizer, end: int, rows: text.Rows) -> list[list[int]]:
    """Return the token ids of each row's context and the separator."""
    return [[*context, end] for context in _token_ids(tokenizer, [row["context"] for row in rows])]


def completion_loss(model: Any, inputs: dict[str, Tensor], smoothing: float) -> Tensor:
    """Return the mean loss of the tokens whose type is 1, in nats, from a causal model's keyword arguments (N, T).

    The share ``smoothing`` of the target is spread over all tokens evenly.
    """
    logits = model(**text.accepted(model, inputs)).logits[:, :-1]
    asked = inputs["token_type_ids"][:, 1:] == 1
    return functional.cross_entropy(logits[asked], inputs["input_ids"][:, 1:][asked], label_smoothing=smoothing)


def adapt(model: Any, settings: WebNLGTrainSettings) -> Any:
    """Put adapters of query and value into a GPT-2, in place, and freeze all else.

    Each has a rank of its own, as in microsoft/LoRA, whereas peft knows one adapter for the whole of ``c_attn``. With
    twice the rank it is both, as long as the other blocks of its B, those of the key among them, stay the zeros that
    they start with: they get no gradient.

    Returns:
        peft's view of the model, for ``lora_training.merge``.

    Raises:
        SettingsError: another model.
    """
    if model.config.model_type != "gpt2":
        raise SettingsError(f"LoRA on WebNLG: not for a {model.config.model_type}, choose a gpt2")
    rank, width = settings.rank, model.config.n_embd
    both = settings.model_copy(update={"rank": 2 * rank, "alpha": 2 * settings.alpha})
    adapted = lora_training.attach(model, ["c_attn"], both, settings.seed, fan_in_fan_out=True)
    for block in model.base_model.h:
        weight = block.attn.c_attn.lora_B["default"].weight  # B, (3 d, 2 r)
        free = torch.zeros_like(weight)
        free[:width, :rank] = free[2 * width :, rank:] = 1
        weight.register_hook(free.mul)
    return adapted
