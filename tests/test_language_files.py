"""WikiText-2 and the Penn Treebank from hand-made files and from real text."""

import shutil
import zipfile
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from flexround.errors import InputError
from flexround.tasks.language.files import read

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "wikitext2"
RAW = " \n = Zürich = \n \n Zürich lies on a lake .\u2028 It is old . \n"
ROWS = [{"text": text} for text in ("", " = Zürich = \n", "", " Zürich lies on a lake .\u2028 It is old . \n")]


def shards(directory, *parts, column="text"):
    directory.mkdir(parents=True, exist_ok=True)
    for index, texts in enumerate(parts):
        path = directory / f"train-{index:05}-of-{len(parts):05}.parquet"
        parquet.write_table(pa.table({column: texts}), path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_wikitext_from_text(tmp_path, end):
    (tmp_path / "wiki.valid.raw").write_bytes(RAW.replace("\n", end).encode())
    (tmp_path / "wiki.valid.tokens").write_text("<unk>\n")
    assert read(tmp_path, "wikitext2", "validation") == ROWS


@pytest.mark.parametrize("folder", ["wikitext-2-raw-v1", "."])
def test_wikitext_from_parquet_goes_first(tmp_path, folder):
    texts = [row["text"] for row in ROWS]
    shards(tmp_path / folder, texts[:1], texts[1:])
    (tmp_path / "wiki.train.raw").write_text("other\n")
    assert read(tmp_path, "wikitext2", "train") == ROWS


def test_text_without_rare_words_is_read_with_a_warning(tmp_path, caplog):
    (tmp_path / "wiki.train.tokens").write_text(" a <unk> \n")
    assert read(tmp_path, "wikitext2", "train") == [{"text": " a <unk> \n"}]
    assert "rare words are <unk>" in caplog.text


def test_ptb_lines_are_stripped(tmp_path):
    (tmp_path / "ptb.train.txt").write_text(" no it was n't black monday \n but while the <unk> N % \n")
    (tmp_path / "ptb.valid.txt").write_text("last")
    texts = ["no it was n't black monday", "but while the <unk> N %"]
    assert read(tmp_path, "ptb", "train") == [{"text": text} for text in texts]
    assert read(tmp_path, "ptb", "validation") == [{"text": "last"}]


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "ptb.train.txt").write_bytes(b"fine\nZ\xfcrich\n")
    with pytest.raises(InputError, match=r"ptb.train.txt, line 2: not UTF-8 \(invalid start byte\)"):
        read(tmp_path, "ptb", "train")


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_empty_splits(tmp_path, content):
    (tmp_path / "wiki.train.raw").write_text(content)
    with pytest.raises(InputError, match=r"wiki.train.raw: no text"):
        read(tmp_path, "wikitext2", "train")


def test_wrong_parquet(tmp_path):
    shards(tmp_path, ["a"], column="sentence")
    with pytest.raises(InputError, match="no column text; it has sentence"):
        read(tmp_path, "wikitext2", "train")
    shards(tmp_path, ["a", None])
    with pytest.raises(InputError, match="row 1: None is no text"):
        read(tmp_path, "wikitext2", "train")


def test_what_is_missing_is_named(tmp_path):
    wanted = r"wikitext-2-raw-v1/train-\*.parquet or wiki.train.raw or wiki.train.tokens there"
    with pytest.raises(InputError, match=wanted):
        read(tmp_path, "wikitext2", "train")
    with pytest.raises(InputError, match=r"the validation split of ptb is missing. Put ptb.valid.txt there"):
        read(tmp_path, "ptb", "validation")


def words(rows):
    return list(chain.from_iterable(row["text"].split() for row in rows))


# real text: lines and words, with one end of sentence a line, as counted in the literature


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_wikitext2(tmp_path):
    shutil.copy(REAL / "valid.txt", tmp_path / "wiki.valid.tokens")
    with zipfile.ZipFile(REAL / "wikitext2.zip") as archive:
        (tmp_path / "wiki.train.tokens").write_bytes(archive.read("wikitext2/train.txt"))
    for split, lines, tokens in (("train", 36718, 2_088_628), ("validation", 3760, 217_646)):
        rows = read(tmp_path, "wikitext2", split)
        assert (len(rows), len(words(rows)) + len(rows)) == (lines, tokens)
        assert rows[0]["text"] == ""
        assert rows[1]["text"].startswith(" = ")
