"""Language models in the formats of GGUF and llama2.c, against Hugging Face's model and merges by hand."""

import itertools

import pytest
import real_files
import torch

from flexround.errors import InputError
from flexround.models import pretrained, released, tokenizer_files


def gguf_llama(seed=0, **changes):
    return real_files.llama(seed, **real_files.GGUF | changes)


def write(model, directory, kind):
    """Write a model and its tokenizer in a format."""
    real_files.write_tokens(directory / "tok512.bin")
    if kind == "gguf":
        real_files.write_gguf(model, directory / "model.gguf")
    else:
        real_files.write_llama2c(model, directory / "stories260K.bin")


def read(model, directory, kind):
    if kind == "gguf":
        pretrained.import_gguf(model, directory / "model.gguf", directory / "out")
    else:
        released.import_stories260k(model, directory, directory / "out")


@pytest.mark.parametrize(
    ("kind", "make", "changes"),
    [
        ("gguf", gguf_llama, {}),
        ("llama2c", real_files.llama, {"tie_word_embeddings": True}),
        ("llama2c", real_files.llama, {"tie_word_embeddings": False}),
    ],
    ids=["gguf", "shared head", "own head"],
)
def test_the_loaded_model_computes_what_the_written_one_does(tmp_path, kind, make, changes):
    written, model = make(seed=1, **changes), make(seed=2, **changes)
    write(written, tmp_path, kind)
    read(model, tmp_path, kind)
    ids = torch.arange(20)[None] * 7 % model.config.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, written(ids).logits, rtol=0, atol=0)
    tokenizer = tokenizer_files.load(tmp_path / "out/tokenizer.json")
    assert tokenizer.encode("").ids == ([] if kind == "gguf" else [released.BEGIN])
    if kind == "gguf":
        assert tokenizer.encode("abc a 12once").tokens == ["abc", "Ġa", "Ġ", "1", "2", "once"]


@pytest.mark.parametrize(
    ("kind", "make", "changes"),
    [
        ("gguf", gguf_llama, {"rms_norm_eps": 0.1}),
        ("llama2c", real_files.llama, {"max_position_embeddings": 16}),
    ],
)
def test_a_model_of_other_settings_is_refused(tmp_path, kind, make, changes):
    write(make(), tmp_path, kind)
    with pytest.raises(InputError, match=next(iter(changes))):
        read(make(**changes), tmp_path, kind)


def greedy(text):
    """Merge as llama2.c's ``encode`` does: again and again the best pair, the first of equally good ones."""
    ids = {piece: number for number, piece in enumerate(real_files.TOKENS)}
    pieces = []
    for letter in f" {text}":
        pieces += [letter] if letter in ids else [f"<0x{byte:02X}>" for byte in letter.encode()]
    while pairs := [(ids[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in ids]:
        _, place = min(pairs)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return [released.BEGIN, *(ids[piece] for piece in pieces)]


@pytest.mark.parametrize("text", ["abc", "once abc", "ab ab abcab", "aé\nb", "  a", "oonncece"])
def test_the_tokenizer_of_llama2c_merges_by_the_best_score(tmp_path, text):
    real_files.write_tokens(tmp_path / "tok512.bin")
    assert released.tokenizer(tmp_path / "tok512.bin").encode(text).ids == greedy(text)
