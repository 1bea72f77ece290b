"""Language models in the formats of GGUF and llama2.c, against Hugging Face's model and merges by hand."""

import itertools
import struct

import pytest
import real_files
import report_case
import torch
from transformers import modeling_gguf_pytorch_utils as reader

from flexround.errors import InputError
from flexround.models import gguf, llama2c, tokenizer_files


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
        gguf.import_file(model, directory / "model.gguf", directory / "out")
    else:
        llama2c.import_stories260k(model, directory, directory / "out")


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
    assert tokenizer.encode("").ids == ([] if kind == "gguf" else [llama2c.BEGIN])
    if kind == "gguf":
        assert tokenizer.encode("abc a 12once").tokens == ["abc", "Ġa", "Ġ", "1", "2", "once"]


@pytest.mark.parametrize(
    ("kind", "make", "changes", "message"),
    [
        ("gguf", gguf_llama, {"rms_norm_eps": 0.1}, r"1; rms_norm_eps is 9.*, the settings say 0\.1;"),
        ("llama2c", real_files.llama, {"max_position_embeddings": 16}, "1; max_position_embeddings is 32, .* say 16;"),
    ],
)
def test_a_model_of_other_settings_is_refused_with_all_differences(tmp_path, kind, make, changes, message):
    write(make(), tmp_path, kind)
    with pytest.raises(InputError, match=rf"\w+\.\w+: num_hidden_layers is 2, the settings say {message}"):
        read(make(num_hidden_layers=1, **changes), tmp_path, kind)


def cut(end):
    return lambda whole: whole[:end]


def with_nan(whole):
    return whole[:28] + struct.pack("<f", float("nan")) + whole[32:]


UNREADABLE = "missing, or no readable GGUF language model .*fetch it again"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.gguf", None, UNREADABLE),
        ("model.gguf", cut(-64), UNREADABLE),
        ("model.gguf", lambda whole: report_case.PIXEL, UNREADABLE),
        ("stories260K.bin", None, "can't be read"),
        ("stories260K.bin", cut(-4), "weights, its header tells of"),
        ("stories260K.bin", cut(20), "20 bytes are no"),
        ("stories260K.bin", with_nan, r"embed_tokens\.weight holds NaN"),
        ("tok512.bin", cut(-1), "not a llama2.c tokenizer"),
        ("tok512.bin", cut(-10), "272 different tokens, the model has 273; fetch both again"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, change, message):
    kind, make = ("gguf", gguf_llama) if name == "model.gguf" else ("llama2c", real_files.llama)
    write(make(), tmp_path, kind)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if change:
        (tmp_path / name).write_bytes(change(whole))
    with pytest.raises(InputError, match=rf"{name}: .*{message}"):
        read(make(), tmp_path, kind)


def test_without_its_package_it_says_what_to_install(tmp_path, monkeypatch):
    write(gguf_llama(), tmp_path, "gguf")
    monkeypatch.setattr(reader, "is_gguf_available", lambda: False)
    with pytest.raises(InputError, match=r"model\.gguf: needs the package gguf; pip install 'flexround\[llm\]'"):
        read(gguf_llama(), tmp_path, "gguf")


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
def test_the_tokenizer_of_llama2c_merges_by_the_best_score(tmp_path, text):
    real_files.write_tokens(tmp_path / "tok512.bin")
    assert llama2c.tokenizer(tmp_path / "tok512.bin", len(real_files.TOKENS)).encode(text).ids == greedy(text)
