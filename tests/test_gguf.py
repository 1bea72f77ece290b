"""Language models in the format GGUF, written by llama.cpp's own package, against the weights that they stand for."""

import pytest
import real_files
import report_case
import torch
from transformers import modeling_gguf_pytorch_utils as reader

from flexround.errors import InputError
from flexround.models import gguf, tokenizer_files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


def llama(seed=0, **changes):
    return real_files.llama(seed, **real_files.GGUF | changes)


def test_the_loaded_model_computes_what_the_file_s_weights_do(path, tmp_path):
    written, model = llama(seed=1), llama(seed=2)
    real_files.write_gguf(written, path)
    gguf.import_file(model, path, tmp_path / "out")
    ids = torch.arange(20)[None] * 7 % len(real_files.BPE)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, written(ids).logits, rtol=0, atol=0)
    tokenizer = tokenizer_files.load(tmp_path / "out/tokenizer.json")
    assert tokenizer.encode("").ids == []
    assert tokenizer.encode("abc a 12once").tokens == ["abc", "Ġa", "Ġ", "1", "2", "once"]


def test_a_model_of_other_settings_is_refused_with_all_differences(path, tmp_path):
    real_files.write_gguf(llama(), path)
    message = r"model\.gguf: num_hidden_layers is 2, the settings say 1; rms_norm_eps is 9.*, the settings say 0\.1;"
    with pytest.raises(InputError, match=message):
        gguf.import_file(llama(num_hidden_layers=1, rms_norm_eps=0.1), path, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "missing, or no readable GGUF language model .*fetch it again"),
        (lambda whole: whole[:-64], "missing, or no readable GGUF language model .*fetch it again"),
        (lambda whole: report_case.PIXEL, "missing, or no readable GGUF language model"),
    ],
    ids=["missing", "cut", "an image"],
)
def test_damaged_files_are_refused(path, tmp_path, change, message):
    real_files.write_gguf(llama(), path)
    whole = path.read_bytes()
    path.unlink()
    if change:
        path.write_bytes(change(whole))
    with pytest.raises(InputError, match=rf"model\.gguf: {message}"):
        gguf.import_file(llama(), path, tmp_path)


def test_without_its_package_it_says_what_to_install(path, tmp_path, monkeypatch):
    real_files.write_gguf(llama(), path)
    monkeypatch.setattr(reader, "is_gguf_available", lambda: False)
    with pytest.raises(InputError, match=r"model\.gguf: needs the package gguf; pip install 'flexround\[llm\]'"):
        gguf.import_file(llama(), path, tmp_path)
