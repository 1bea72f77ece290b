"""WebNLG 2017, sentences from triples: LoRA fine-tuning of a GPT-2, beam search and BLEU (table 6; specification 8).

An example consists of the triples as text, a separator, the sentence after a space, and the end of text. The separator
is also the end-of-text token. Only the sentence and its end are learned.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
from sacrebleu.metrics import BLEU
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.settings.validation import validate
from flexround.tasks import beam, encode, text, text_training
from flexround.tasks.encode import Encoded
from flexround.tasks.options import WebNLGOptions, WebNLGTrainSettings
from flexround.tasks.protocol import Evaluation, Split, draw_indices
from flexround.tasks.text_metrics import REPLICATES, Scored, resampled

END = "<|endoftext|>"
BLANK_LINE = "ĊĊ"  # also ends a sentence, in GPT-2's spelling of bytes; mini vocabularies lack this token
PROMPTS = 16  # prompts decoded at once: each has ten beams in the cache
SEEN = (  # categories of the training set; microsoft/LoRA, examples/NLG/src/format_converting_webnlg.py
    *("Airport", "Astronaut", "Building", "City", "ComicsCharacter"),
    *("Food", "Monument", "SportsTeam", "University", "WrittenWork"),
)
REFERENCES = 6
ORDERS = 4  # longest n-gram


class WebNLG(text.TextTask):
    """Generation of sentences from triples."""

    options: WebNLGOptions
    head = {"head": "causal-lm"}

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        root = sources / self.options.root
        return {split: unique_contexts(read(root, split)) for split in ("train", "test")}

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return random training sentences with contexts, none held out; int64 (samples,) indices, see ``packed``."""
        entries = text.read_rows(data, "train")
        kept, _ = self.parts(len(entries))
        rows = training_rows([entries[index] for index in kept])
        indices = draw_indices(len(rows), samples, seed)
        return text.packed(indices, [json.dumps(rows[index], ensure_ascii=False) for index in indices])

    def encode(self, rows: text.Rows, network: Path) -> Encoded:
        """Return one input per training row; its types are 1 for the tokens of the sentence and its end.

        Source: microsoft/LoRA, examples/NLG/src/gpt2_encode.py and data_utils.py.
        """
        tokenizer, end = _load_tokenizer(network)
        prompts, length = _prompt_ids(tokenizer, end, rows), self.options.max_length
        sentences = _token_ids(tokenizer, [f" {row['reference']}" for row in rows])
        encoded = Encoded(*(np.zeros((len(rows), length), kind) for kind in (np.int32, np.int8, bool)))
        for index, (prompt, sentence) in enumerate(zip(prompts, sentences, strict=True)):
            ids = [*prompt, *sentence, end][:length]
            encoded.ids[index, : len(ids)] = ids
            encoded.types[index, len(prompt) : len(ids)] = 1
            encoded.mask[index, : len(ids)] = True
        return encoded

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train adapters of ``model`` and merge them; see ``WebNLGTrainSettings`` and ``adapt``.

        The base model's dropout follows its configuration; the published recipe uses no dropout.
        """
        checked = validate(WebNLGTrainSettings, settings, "train settings of WebNLG")
        encode.check_positions(model, self.options.max_length)
        tokenizer_files.check_vocabulary(model, _load_tokenizer(network)[0], network / TOKENIZER)
        arrays = vars(self.encode(training_rows(text.read_rows(data, "train")), network))

        def loss(model: Any, batch: dict[str, Tensor], _: torch.Generator) -> Tensor:
            return completion_loss(model, text.arguments(batch), checked.label_smoothing)

        adapted = adapt(model, checked)
        facts = text_training.train(model, arrays, loss, checked, lambda batch: (batch["types"][:, 1:] == 1).sum())
        text_training.merge(adapted)
        return {"settings": checked.model_dump(mode="json"), **facts}

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return BLEU in percent as ``unseen``, ``seen`` and ``all``; for held-out rows only ``all``.

        The predictions are the generated token ids, int32 (N, steps), padded with -1.
        """
        rows = self.split_rows(data, split, "test")
        tokenizer, end = _load_tokenizer(network)
        prompts, blank_line = _prompt_ids(tokenizer, end, rows), tokenizer.token_to_id(BLANK_LINE)
        eos = [end] if blank_line is None else [end, blank_line]
        generated = beam.search(model, prompts, self.options, eos, min(batch, PROMPTS))
        texts = tokenizer.decode_batch(generated, skip_special_tokens=False)
        seen = np.array([row["seen"] for row in rows])
        scored = scores(texts, [row["references"] for row in rows], seen)
        if split == "heldout":  # only the metric that selects settings
            scored = {"all": scored["all"]}
        tokens = np.array([ids + [-1] * (self.options.steps - len(ids)) for ids in generated], np.int32)
        return text.evaluation(scored, {f"{split}/tokens": tokens})


def _load_tokenizer(network: Path) -> tuple[Tokenizer, int]:
    """Return a network's tokenizer, without padding and truncation, and the id of its end of text."""
    tokenizer = tokenizer_files.load(network / TOKENIZER)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if (end := tokenizer.token_to_id(END)) is None:
        raise InputError(f"{network / TOKENIZER}: has no {END}, the separator; take a GPT-2 and its tokenizer")
    return tokenizer, end


def _token_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return each text's token ids, without special tokens."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _prompt_ids(tokenizer: Tokenizer, end: int, rows: text.Rows) -> list[list[int]]:
    """Return the token ids of each row's context and of the separator."""
    return [[*context, end] for context in _token_ids(tokenizer, [row["context"] for row in rows])]


def completion_loss(model: Any, inputs: dict[str, Tensor], smoothing: float) -> Tensor:
    """Return the mean loss of the tokens with type 1, in nats, from a causal model's keyword arguments (N, T).

    The share ``smoothing`` of the target is spread evenly over all tokens.
    """
    logits = model(**text.accepted(model, inputs)).logits[:, :-1]
    asked = inputs["token_type_ids"][:, 1:] == 1
    return functional.cross_entropy(logits[asked], inputs["input_ids"][:, 1:][asked], label_smoothing=smoothing)


def adapt(model: Any, settings: WebNLGTrainSettings) -> Any:
    """Put adapters for query and value into a GPT-2, in place, and freeze all other weights.

    Query and value have separate adapters, as in microsoft/LoRA, but peft supports only one adapter for all of
    ``c_attn``. An adapter with twice the rank equals both if the other blocks of its B, such as the key's, stay zero:
    they start as zeros and get no gradient.

    Returns:
        peft's wrapper of the model, for ``text_training.merge``.
    """
    rank, width = settings.rank, model.config.n_embd
    both = settings.model_copy(update={"rank": 2 * rank, "alpha": 2 * settings.alpha})
    adapted = text_training.attach(model, ["c_attn"], both, settings.seed, fan_in_fan_out=True)
    for block in model.base_model.h:
        weight = block.attn.c_attn.lora_B["default"].weight  # B, (3 d, 2 r)
        free = torch.zeros_like(weight)
        free[:width, :rank] = free[2 * width :, rank:] = 1
        weight.register_hook(free.mul)
    return adapted


def read(root: Path, split: str) -> text.Rows:
    """Read the entries of one split, ``train`` or ``test``, from ``root/SPLIT.json``.

    Returns:
        Rows with ``category``, ``seen`` (whether the training set has the category), ``context`` (all triples as
        ``"subject : property : object"``, joined by ``" | "``) and ``references`` (the sentences that are marked good
        and not blank). ``train`` entries without references are left out; the release has a few.
    """
    document = json.loads((root / f"{split}.json").read_text(encoding="utf-8"))
    rows = [_row(entry[str(number)]) for number, entry in enumerate(document["entries"], 1)]
    return [row for row in rows if row["references"] or split == "test"]


def training_rows(entries: text.Rows) -> text.Rows:
    """Return one row per sentence: its ``context`` and the sentence as ``reference``."""
    return [{"context": entry["context"], "reference": words} for entry in entries for words in entry["references"]]


def unique_contexts(entries: text.Rows) -> text.Rows:
    """Return one row per context, with all its entries' references, in the order of the first entries."""
    pooled: dict[str, dict[str, Any]] = {}
    for entry in entries:
        row = pooled.setdefault(entry["context"], entry | {"references": []})
        row["references"] += entry["references"]
    return list(pooled.values())


def _row(entry: Any) -> dict[str, Any]:
    sentences = [text["lex"] for text in entry["lexicalisations"] if text["comment"] == "good"]
    triples = [[triple[part] for part in ("subject", "property", "object")] for triple in entry["modifiedtripleset"]]
    return {
        "category": entry["category"],
        "seen": entry["category"] in SEEN,
        "context": " | ".join(" : ".join(triple) for triple in triples),
        "references": [sentence for sentence in sentences if sentence.strip()],
    }


def scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]], seen: np.ndarray) -> dict[str, Scored]:
    """Score generated texts.

    Args:
        hypotheses: one generated text per context, with or without the text after its end.
        references: each context's sentences.
        seen: (N,) bool, whether the training set has the context's category.

    Returns:
        BLEU in percent as ``unseen``, ``seen`` and ``all``; a part without contexts is left out. Resample r has the
        same contexts for every run on N contexts.
    """
    texts = [post_process(text) for text in hypotheses]
    expected = [six([post_process(text) for text in sentences]) for sentences in references]
    parts = {"unseen": ~seen, "seen": seen, "all": np.ones(len(seen), bool)}
    counts = statistics(texts, expected)
    chosen = {name: np.flatnonzero(part) for name, part in parts.items() if part.any()}
    return {
        name: resampled(
            corpus_bleu([texts[i] for i in rows], [expected[i] for i in rows]), len(rows), replicates(counts[rows])
        )
        for name, rows in chosen.items()
    }


def post_process(text: str) -> str:
    """Cut a text at its end or at a blank line, make it lower case, and put spaces around all punctuation.

    Source: microsoft/LoRA, examples/NLG/src/gpt2_decode.py with ``--tokenize --lower``.
    """
    sentence = text.split("<|endoftext|>")[0].split("\n\n")[0]
    return " ".join(re.sub(r"(\W)", r" \1 ", sentence.lower()).split())


def six(references: Sequence[str]) -> list[str]:
    """Return exactly ``REFERENCES`` references: the first ones, padded with the first reference, or ``""`` if none."""
    first = references[0] if references else ""
    return [*references, *[first] * REFERENCES][:REFERENCES]


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return sacrebleu's score in percent of N texts, each with the same number of references."""
    streams = list(zip(*references, strict=True))
    return sacrebleu.corpus_bleu(hypotheses, streams, smooth_method="none", force=True, tokenize="13a").score


def statistics(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return each text's BLEU statistics: int64 (N, 2 + 2 * ``ORDERS``).

    The first columns are the lengths of the text and of the closest reference. For n = 1 to ``ORDERS`` the numbers of
    n-grams that match a reference follow, then the total numbers of n-grams.
    """
    # effective_order only avoids a warning per text: it changes the unused scores, but no counts.
    metric = BLEU(tokenize="13a", smooth_method="none", force=True, effective_order=True)
    scored = [metric.sentence_score(text, expected) for text, expected in zip(hypotheses, references, strict=True)]
    return np.array([[each.sys_len, each.ref_len, *each.counts, *each.totals] for each in scored], np.int64)


def from_statistics(sums: np.ndarray) -> np.ndarray:
    """Return BLEU in percent from sums of statistics (..., 2 + 2 * ``ORDERS``): geometric mean x brevity penalty.

    Papineni et al. 2002, section 2.3; 0 if no n-gram of some length matches.
    """
    lengths, closest = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    precisions = np.prod(matches / np.maximum(totals, 1), axis=-1)  # 0 without n-grams
    return 100 * precisions ** (1 / ORDERS) * np.exp(np.minimum(0, 1 - closest / np.maximum(lengths, 1)))


def replicates(counts: np.ndarray) -> np.ndarray:
    """Return BLEU in percent on bootstrap resamples of texts, from their ``statistics``: float64 (``REPLICATES``,).

    Resample r has the same texts for every run on N texts.
    """
    size = len(counts)
    drawn = np.random.default_rng(derive("bootstrap", size)).multinomial(size, np.full(size, 1 / size), REPLICATES)
    return from_statistics(drawn @ counts)
