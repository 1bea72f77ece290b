"""Models and tokenizers in the format of llama2.c, against Hugging Face's model and merges by hand."""

import itertools
import struct

import pytest
import real_files
import torch

from flexround.errors import InputError
from flexround.models import llama2c, tokenizer_files


@pytest.fixture
def files(tmp_path):
    real_files.write_tokens(tmp_path / "tokens.bin")
    return tmp_path / "model.bin", tmp_path / "tokens.bin"


@pytest.mark.parametrize("shared", [True, False], ids=["shared head", "own head"])
def test_the_loaded_model_computes_what_the_written_one_does(files, tmp_path, shared):
    written = real_files.llama(seed=1, tie_word_embeddings=shared)
    real_files.write_llama2c(written, files[0])
    model = real_files.llama(seed=2, tie_word_embeddings=shared)
    llama2c.import_files(model, *files, tmp_path / "out")
    ids = torch.arange(20)[None] * 7 % len(real_files.TOKENS)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, written(ids).logits, rtol=0, atol=0)
    assert tokenizer_files.load(tmp_path / "out/tokenizer.json").encode("").ids == [llama2c.BEGIN]


def greedy(text):
    """Merge as llama2.c's ``encode`` does: again and again the best pair, the first of equally good ones."""
    ids = {piece: number for number, piece in enumerate(real_files.TOKENS)}
    pieces = []
    for letter in f" {text}":
        pieces += [letter] if letter in ids else [f"<0x{byte:02X}>" for byte in letter.encode()]
    while pairs := [(ids[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in ids]:
        _, place = min(pairs)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return [llama2c.BEGIN, *(ids[piece] for piece in pieces)]


@pytest.mark.parametrize("text", ["abc", "once abc", "ab ab abcab", "aé\nb", "  a", "oonncece"])
def test_the_tokenizer_merges_by_the_best_score(files, text):
    assert llama2c.tokenizer(files[1], len(real_files.TOKENS)).encode(text).ids == greedy(text)


def test_a_model_of_other_settings_is_refused_with_all_differences(files, tmp_path):
    real_files.write_llama2c(real_files.llama(), files[0])
    other = real_files.llama(num_hidden_layers=1, max_position_embeddings=16)
    message = "num_hidden_layers is 2, the settings say 1; max_position_embeddings is 32, the settings say 16"
    with pytest.raises(InputError, match=message):
        llama2c.import_files(other, *files, tmp_path)


def cut(end):
    return lambda whole: whole[:end]


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, None, r"model\.bin: can't be read"),
        (0, cut(-4), "weights, its header tells of"),
        (0, cut(20), "20 bytes are no"),
        (0, lambda whole: whole[:28] + struct.pack("<f", float("nan")) + whole[32:], r"embed_tokens\.weight holds NaN"),
        (1, cut(-1), "not a llama2.c tokenizer"),
        (1, cut(-10), "272 different tokens, the model has 273; fetch both again"),
    ],
    ids=["missing", "cut", "header alone", "NaN", "cut token", "a token less"],
)
def test_damaged_files_are_refused(files, tmp_path, number, change, message):
    model = real_files.llama()
    real_files.write_llama2c(model, files[0])
    whole = files[number].read_bytes()
    files[number].unlink()
    if change:
        files[number].write_bytes(change(whole))
    with pytest.raises(InputError, match=message):
        llama2c.import_files(model, *files, tmp_path)
