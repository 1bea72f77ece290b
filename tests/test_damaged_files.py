"""Files that are damaged in ways that no parser of theirs has an exception of ours for."""

import bz2
import zipfile

import pyarrow
import pytest
from pyarrow import parquet
from report_case import PLAN, RUN, fill_root
from table_runs import complete, make

from flexround import artifacts
from flexround.errors import InputError
from flexround.library import command
from flexround.models.checkpoints import read_foreign
from flexround.models.shards import opened, read_index
from flexround.results.render import job_costs, run_facts, table_layout
from flexround.tasks.commonsense import files as commonsense
from flexround.tasks.language import c4
from flexround.tasks.squad import files as squad
from flexround.tasks.text import files as text_files
from flexround.tasks.webnlg import files as webnlg


def refused(call, *arguments):
    with pytest.raises(InputError) as caught:
        call(*arguments)
    return str(caught.value)


# what others release


def test_text_in_parquet_that_is_not_utf_8(tmp_path):
    wrong = pyarrow.StringArray.from_buffers(
        1, pyarrow.array([0, 2], pyarrow.int32()).buffers()[1], pyarrow.py_buffer(b"\xff\xfe")
    )
    parquet.write_table(pyarrow.table({"text": wrong}), tmp_path / "test.parquet")
    assert "test.parquet: not a readable parquet file" in refused(
        text_files.read, [tmp_path / "test.parquet"], ["text"]
    )


def test_a_zip_whose_packed_bytes_are_noise(tmp_path):
    path = tmp_path / "dev-v1.1.json.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dev-v1.1.json", "x" * 5000)
    content = bytearray(path.read_bytes())
    content[43:48] = b"\xff" * 5
    path.write_bytes(content)
    assert "not readable" in refused(squad.read, tmp_path, "validation")


@pytest.mark.parametrize("content", [bz2.compress(b"a\n" * 6)[:-9], bz2.compress(b"\xff" * 6), b"no bz2"])
def test_a_damaged_bz2(tmp_path, content):
    (tmp_path / "hellaswag_val_full.txt.bz2").write_bytes(content)
    assert "not a whole text in UTF-8" in refused(commonsense.read, tmp_path, "hellaswag", False)


def test_lists_of_choices_that_are_none(tmp_path):
    folder = tmp_path / "arc_easy"
    folder.mkdir()
    for choices in ('["a", "b"]', '"ab"', "5", "null"):
        row = f'{{"question": {{"stem": "which", "choices": {choices}}}, "answerKey": "A"}}\n'
        (folder / "ARC-Easy-Test.jsonl").write_text(row)
        assert "example 1" in refused(commonsense.read, tmp_path, "arc_easy", False)
    (tmp_path / "piqa.jsonl").write_text('{"query": null, "choices": 5, "gold": []}\n')
    assert "not the posed questions of piqa" in refused(commonsense.read, tmp_path, "piqa", False)


def test_labels_that_are_not_utf_8(tmp_path):
    folder = tmp_path / "piqa"
    folder.mkdir()
    (folder / "valid.jsonl").write_text('{"goal": "g", "sol1": "a", "sol2": "b"}\n')
    (folder / "valid-labels.lst").write_bytes(b"\xff\n")
    assert "not UTF-8" in refused(commonsense.read, tmp_path, "piqa", False)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.safetensors.index.json", read_index),
        ("config.json", lambda path: command.weightless_model(path.parent)),
        ("valid.jsonl", commonsense.read_lines),
        ("train.json", lambda path: webnlg.read(path.parent, "train")),
        ("dev-v1.1.json", lambda path: squad.read(path.parent, "validation")),
        ("c4-train.00000-of-01024.json", lambda path: c4.read(path.parent, "paper", 1, 1)),
    ],
)
def test_json_that_is_too_deep(tmp_path, name, read):
    (tmp_path / name).write_text("[" * 100_000 + "]" * 100_000)
    assert name in refused(read, tmp_path / name)


def test_a_state_dict_whose_names_are_numbers(tmp_path):
    import torch

    torch.save({1: torch.ones(2)}, tmp_path / "a.pth")
    assert "entry 1" in refused(read_foreign, tmp_path / "a.pth")


def test_an_index_of_shards_with_a_name_that_no_file_can_have(tmp_path):
    with pytest.raises(InputError, match="not a whole safetensors file"), opened(tmp_path / ("x" * 5000)):
        pass


# what the suite writes


def test_a_log_that_is_not_utf_8_is_shown_all_the_same(tmp_path):
    fill_root(tmp_path)
    (log,) = tmp_path.glob("logs/mini/quantized/**/*.log")
    log.write_bytes(b"12:00:01 block \xff\n")
    sections = dict(run_facts.sections(tmp_path, PLAN, RUN))
    assert any(str(text).startswith("block \ufffd") for title, text in sections.items() if title.startswith("End of"))


@pytest.mark.parametrize("content", ['{"hyper": {"lr": 1}, "hyper_sources": "x"}', '{"recipe": []}', "[]"])
def test_a_manifest_of_another_shape_is_named(tmp_path, content):
    fill_root(tmp_path)
    (manifest,) = tmp_path.glob("results/mini/quantized/**/manifest.json")
    manifest.write_text(content)
    assert str(manifest.parent.name) in refused(run_facts.sections, tmp_path, PLAN, RUN)


@pytest.mark.parametrize(
    "content", ['{"blocks": 5}', "[]", '{"blocks": [{"seconds": "x", "peak_mb": 1}]}', '{"blocks": []}']
)
def test_a_record_without_seconds_is_named(tmp_path, content):
    (tmp_path / "results/mini/quantized").mkdir(parents=True)
    (tmp_path / "results/mini/quantized/record.json").write_text(content)
    assert "record.json: not the accounting" in refused(job_costs.cost, tmp_path, "results/mini/quantized")


def test_a_damaged_csv_of_a_table_is_refused(tmp_path):
    complete(tmp_path)
    text = make(tmp_path)
    lines = text.splitlines()
    assert "not as many cells" in refused(table_layout.parse, "\n".join([lines[0], lines[1].rpartition(",")[0]]))
    assert "not as many cells" in refused(table_layout.parse, text.replace("\n", ",x\n").replace(",x\n", "\n", 1))
    assert "is no number" in refused(table_layout.parse, text.replace("70.00", "7o.00"))
    (tmp_path / "a.csv").write_bytes(b"\xff")
    assert "a.csv: byte 0 is not UTF-8" in refused(artifacts.read_text, tmp_path / "a.csv")
