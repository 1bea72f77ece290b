"""Train the mini scale's tokenizers: small vocabularies of the kinds that BERT and the GPT-2 family have."""

import json
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from flexround.errors import SettingsError

END = "<|endoftext|>"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # of WordPiece


def train(sentences: Sequence[str], kind: str, size: int) -> tokenizers.Tokenizer:
    """Train a tokenizer; the same sentences give the same one, in every process.

    Args:
        sentences: the corpus.
        kind: ``wordpiece``, BERT's: lower case, pairs as ``[CLS] first [SEP] second [SEP]`` with types 0 and 1, padded
            with ``[PAD]``; or ``bpe``, GPT-2's: on bytes, nothing added, padded with ``<|endoftext|>``; or
            ``bpe-begin``, the same with ``<|endoftext|>`` before each text, as LLaMA has its ``<s>``.
        size: greatest number of tokens. The special ones come first, so the padding token has id 0.

    Raises:
        SettingsError: no room for the alphabet.
    """
    tokenizer = (_wordpiece if kind == "wordpiece" else _bpe)(sentences, size)
    if kind == "bpe-begin":
        begun = processors.TemplateProcessing(single=f"{END} $A", pair=f"{END} $A $B:1", special_tokens=[(END, 0)])
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, begun])
    if (smallest := tokenizer.get_vocab_size()) > size:
        raise SettingsError(f"tokenizer size {size}: special tokens and single characters alone are {smallest}")
    tokenizer.enable_padding(pad_id=0, pad_token=SPECIAL[0] if kind == "wordpiece" else END)
    return tokenizer


def _wordpiece(sentences: Sequence[str], size: int) -> tokenizers.Tokenizer:
    """Train a vocabulary and give it BERT's pipeline."""
    learner = _bert(models.WordPiece(unk_token="[UNK]"))
    # The trainer numbers these in the order of a randomly seeded hash map, and breaks ties by number; as special
    # tokens they have fixed numbers.
    split, normalize = learner.pre_tokenizer.pre_tokenize_str, learner.normalizer.normalize_str
    words = {word for sentence in sentences for word, _ in split(normalize(sentence))}
    inner = sorted({f"##{letter}" for word in words for letter in word[1:]})
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIAL + inner, show_progress=False)
    learner.train_from_iterator(sentences, trainer)
    tokenizer = _bert(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def _bert(model: models.Model) -> tokenizers.Tokenizer:
    """Return a model behind BERT's normalisation and splitting into words."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _bpe(sentences: Sequence[str], size: int) -> tokenizers.Tokenizer:
    """Train GPT-2's pipeline. All 256 bytes are tokens, so that no text is unknown."""
    tokenizer = _bytes(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return _trimmed(tokenizer, sentences)


def _bytes(model: models.Model) -> tokenizers.Tokenizer:
    """Return a model behind GPT-2's splitting into words of bytes."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _trimmed(tokenizer: tokenizers.Tokenizer, sentences: Sequence[str]) -> tokenizers.Tokenizer:
    """Leave out merged tokens that the corpus never shows: parts of words that are whole now.

    A token that is a whole word is found as such (``ignore_merges``); a part of one keeps what it is merged from. So
    the corpus has the same tokens as before.
    """
    model = json.loads(tokenizer.to_str())["model"]
    parts = {first + second: (first, second) for first, second in model["merges"]}
    words = {word for sentence in sentences for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(sentence)}
    kept = set(model["vocab"]) - set(parts)
    missing = {piece.value for word in words - set(parts) for piece in tokenizer.model.tokenize(word)} - kept
    while missing:
        kept |= missing
        missing = {part for token in missing for part in parts[token]} - kept
    merges = [pair for pair in parts.values() if "".join(pair) in kept]
    kept |= words & set(parts)
    vocabulary = {token: index for index, token in enumerate(sorted(kept, key=model["vocab"].__getitem__))}
    trimmed = _bytes(models.BPE(vocabulary, merges, ignore_merges=True))
    trimmed.add_special_tokens([END])
    return trimmed
