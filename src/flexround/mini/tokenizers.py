"""Train the mini scale's tokenizers: small vocabularies of the kinds that BERT and the GPT-2 family have."""

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
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer
