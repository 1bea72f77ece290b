"""SQuAD from parquet and JSON, in hand-made files; the real validation set at the end."""

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from flexround.errors import InputError
from flexround.tasks.squad.files import COLUMNS, read

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "squad_v11_dev"
CONTEXT = "Zürich lies on a lake."


def question(name="q1", text="a lake", start=15):
    answers = {"text": [text], "answer_start": [start]}
    return {"id": name, "title": "Towns", "context": CONTEXT, "question": "Where?", "answers": answers}


def shards(directory, split, *parts):
    directory.mkdir(parents=True, exist_ok=True)
    for index, rows in enumerate(parts):
        path = directory / f"{split}-{index:05}-of-{len(parts):05}.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), path)


def official(rows):
    """Put rows into SQuAD's own layout, a paragraph each."""
    paragraphs = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        asked = {"id": row["id"], "question": row["question"], "answers": answers}
        paragraphs.append({"context": row["context"], "qas": [asked]})
    return {"version": "1.1", "data": [{"title": "Towns", "paragraphs": paragraphs}]}


@pytest.mark.parametrize("folder", ["plain_text", "."])
def test_parquet(tmp_path, folder):
    shards(tmp_path / folder, "train", [question("q1") | {"more": 1}], [question("q2")])
    shards(tmp_path / folder, "validation", [question("q3")])
    assert read(tmp_path, "train") == [question("q1"), question("q2")]
    assert read(tmp_path, "validation") == [question("q3")]


def test_own_json_plain_and_zipped(tmp_path):
    rows = [question("q1"), question("q2", "Zürich", 0)]
    (tmp_path / "train-v1.1.json").write_text(json.dumps(official(rows), ensure_ascii=False))
    assert read(tmp_path, "train") == rows
    with zipfile.ZipFile(tmp_path / "dev-v1.1.json.zip", "w") as archive:
        archive.writestr("dev-v1.1.json", json.dumps(official(rows[1:])))
    assert read(tmp_path, "validation") == rows[1:]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([question(), question("q2", start=14), question("q3", start=-7)], "2 questions have an answer .*first is q2"),
        ([question("q1", "", 3)], "1 questions have no answer"),
        ([question() | {"answers": {"text": [], "answer_start": []}}], "1 questions have no answer"),
        ([question("q1"), question("q2"), question("q2")], "1 questions have an id that occurs twice, .* q2"),
        ([], "no questions"),
    ],
)
def test_wrong_questions_are_counted_and_refused(tmp_path, rows, message):
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(official(rows)))
    with pytest.raises(InputError, match=rf"dev-v1.1.json: {message}"):
        read(tmp_path, "validation")


def test_missing_files(tmp_path):
    with pytest.raises(InputError, match=r"plain_text/train-\*.parquet or train-v1.1.json or train-v1.1.json.zip"):
        read(tmp_path, "train")


def test_damaged_files(tmp_path):
    (tmp_path / "dev-v1.1.json").write_text('{"data": [')
    with pytest.raises(InputError, match=r"dev-v1.1.json: not readable"):
        read(tmp_path, "validation")
    (tmp_path / "dev-v1.1.json").write_text('{"data": [{"title": "Towns"}]}')
    with pytest.raises(InputError, match=r"not in the layout of SQuAD 1.1.*paragraphs"):
        read(tmp_path, "validation")
    (tmp_path / "train-v1.1.json.zip").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"train-v1.1.json.zip: not readable"):
        read(tmp_path, "train")
    parquet.write_table(pa.table({"id": ["q1"], "context": ["c"]}), tmp_path / "train.parquet")
    with pytest.raises(InputError, match="no column title, question, answers; it has id, context"):
        read(tmp_path, "train")


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_validation_set():
    rows = read(REAL, "validation")
    assert len(rows) == 10570
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["answers"] == {"text": ["Denver Broncos"] * 3, "answer_start": [177] * 3}
