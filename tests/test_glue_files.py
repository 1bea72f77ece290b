"""GLUE from parquet and from text, in hand-made files; the real ones at the end."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from flexround.errors import InputError
from flexround.tasks.glue import files as glue_files
from flexround.tasks.glue.files import COLUMNS, SPLITS, read

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "glue"
MNLI_COLUMNS = ["index", "promptID", "pairID", "genre", "sentence1", "sentence2", "label1", "gold_label"]
STSB_COLUMNS = ["index", "genre", "filename", "year", "old_index", "source1", "source2", *COLUMNS["rte"][:2], "score"]
QQP_COLUMNS = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]


def table(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def text(path, *lines, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode(encoding))


def tsv(path, *rows):
    text(path, *("\t".join(row) for row in rows), "")


def test_parquet_shards_in_order_with_their_own_idx(tmp_path):
    for shard, (word, label) in enumerate([("a", 0), ("b", 1)]):
        path = tmp_path / f"cola/train-0000{shard}-of-00002.parquet"
        table(path, sentence=[word], label=[label], idx=[7 + shard], more=[0])
    assert read(tmp_path, "cola", "train") == [
        {"sentence": "a", "label": 0, "idx": 7},
        {"sentence": "b", "label": 1, "idx": 8},
    ]
    (tmp_path / "cola/train-00000-of-00002.parquet").unlink()
    with pytest.raises(InputError, match=r"train-00001-of-00002.parquet: is one of 2 shards, but there are 1"):
        read(tmp_path, "cola", "train")


def test_the_splits_of_mnli_are_not_mixed_up(tmp_path):
    for split in SPLITS["mnli"]:
        table(tmp_path / f"mnli/{split}-00000-of-00001.parquet", premise=[split], hypothesis=["h"], label=[2])
    for split in SPLITS["mnli"]:
        assert read(tmp_path, "mnli", split) == [{"premise": split, "hypothesis": "h", "label": 2, "idx": 0}]


def test_parquet_goes_before_text(tmp_path):
    tsv(tmp_path / "rte/dev.tsv", COLUMNS["rte"], ("text", "b", "entailment"))
    assert read(tmp_path, "rte", "validation")[0]["sentence1"] == "text"
    table(tmp_path / "rte/validation.parquet", sentence1=["parquet"], sentence2=["b"], label=[0])
    assert read(tmp_path, "rte", "validation")[0]["sentence1"] == "parquet"


@pytest.mark.parametrize(
    ("name", "file", "header", "row", "expected"),
    [
        ("cola", "dev.tsv", None, ("gj04", "0", "*", "a b"), ("a b", 0)),
        ("sst2", "dev.tsv", ("sentence", "label"), ("good ", "1"), ("good ", 1)),
        (
            "mrpc",
            "dev.tsv",
            ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
            list("156ab"),
            ("a", "b", 1),
        ),
        ("stsb", "dev.tsv", STSB_COLUMNS, [*"0123456", "a", "b", "3.800"], ("a", "b", 3.8)),
        ("stsb", "sts-dev.csv", None, ["g", "f", "y", "0", "0.25", "a", "b", "source"], ("a", "b", 0.25)),
        ("qqp", "dev.tsv", QQP_COLUMNS, list("012ab1"), ("a", "b", 1)),
        ("qnli", "dev.tsv", ("index", *COLUMNS["qnli"]), ("0", "q", "s", "entailment"), ("q", "s", 0)),
        ("rte", "dev.tsv", ("index", *COLUMNS["rte"]), ("0", "a", "b", "not_entailment"), ("a", "b", 1)),
    ],
)
def test_text_files(tmp_path, name, file, header, row, expected):
    tsv(tmp_path / name / file, *([header] if header else []), row)
    assert read(tmp_path, name, "validation") == [dict(zip(COLUMNS[name], expected, strict=True)) | {"idx": 0}]


def test_the_labels_of_mnli_are_those_of_hugging_face(tmp_path):
    rows = [[*"0123", "p", "h", "neutral", gold] for gold in ("contradiction", "entailment", "neutral")]
    tsv(tmp_path / "MNLI/dev_mismatched.tsv", MNLI_COLUMNS, *rows)
    found = read(tmp_path, "mnli", "validation_mismatched")
    assert [row["label"] for row in found] == [2, 0, 1]
    assert (found[0]["premise"], found[0]["hypothesis"], found[2]["idx"]) == ("p", "h", 2)


def test_both_domains_of_cola_are_the_validation_set(tmp_path):
    tsv(tmp_path / "CoLA/in_domain_dev.tsv", ("x", "1", "", "in"))
    tsv(tmp_path / "CoLA/out_of_domain_dev.tsv", ("x", "0", "*", "out"))
    found = read(tmp_path, "cola", "validation")
    assert [(row["sentence"], row["label"], row["idx"]) for row in found] == [("in", 1, 0), ("out", 0, 1)]


def test_quotes_and_unicode_line_ends_are_text(tmp_path):
    odd = '"stray\u2028quote\x85'
    tsv(tmp_path / "sst2/train.tsv", ("sentence", "label"), (odd, "1"), ("next", "0"))
    assert [row["sentence"] for row in read(tmp_path, "sst2", "train")] == [odd, "next"]
    text(tmp_path / "sst2/train.tsv", "sentence\tlabel\r", "a\t1\r", "b\t0\r", "")
    assert [row["label"] for row in read(tmp_path, "sst2", "train")] == [1, 0]


@pytest.mark.parametrize("mark", ["\ufeff", "\u00ef\u00bb\u00bf"])
def test_the_byte_order_mark_of_mrpc_and_its_own_test_split(tmp_path, mark, caplog):
    header = f"{mark}Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    text(tmp_path / "MRPC/msr_paraphrase_test.txt", header, "0\t1\t2\ta\tb")
    expected = {"sentence1": "a", "sentence2": "b", "label": 0, "idx": 0}
    assert read(tmp_path, "mrpc", "validation") == [expected]
    assert "test split becomes the validation set" in caplog.text


def test_a_broken_line_is_left_out_of_qqp_and_refused_elsewhere(tmp_path):
    tsv(tmp_path / "qqp/train.tsv", QQP_COLUMNS, list("012ab1"), ("3", "broken"), list("456cd0"))
    assert [row["question1"] for row in read(tmp_path, "qqp", "train")] == ["a", "c"]
    tsv(tmp_path / "rte/train.tsv", COLUMNS["rte"], ("a", "b", "entailment"), ("broken",))
    with pytest.raises(InputError, match=r"train.tsv, line 3: 1 fields, needed 3"):
        read(tmp_path, "rte", "train")


def test_a_missing_split_names_the_files_to_put_there(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path / "absent", "cola", "validation")
    for part in ("absent/cola", "validation-*.parquet", "dev.tsv", "in_domain_dev.tsv and out_of_domain_dev.tsv"):
        assert part in str(caught.value)
    tsv(tmp_path / "cola/in_domain_dev.tsv", ("x", "1", "", "half of it"))
    with pytest.raises(InputError, match="the validation split of cola is missing"):
        read(tmp_path, "cola", "validation")


def test_a_missing_column_lists_what_is_there(tmp_path):
    table(tmp_path / "rte/train.parquet", sentence1=["a"], label=[0])
    with pytest.raises(InputError, match=r"train.parquet: no column sentence2; it has sentence1, label"):
        read(tmp_path, "rte", "train")
    tsv(tmp_path / "qnli/train.tsv", ("index", "query", "label"), ("0", "q", "entailment"))
    with pytest.raises(InputError, match=r"no column question, sentence; it has index, query, label"):
        read(tmp_path, "qnli", "train")


@pytest.mark.parametrize(
    ("name", "label", "message"),
    [
        ("rte", "2", "example 1: label '2'; the labels of rte are 0 to 1 or entailment or not_entailment"),
        ("rte", "-1", "this is a test split"),
        ("mrpc", "entailment", "the labels of mrpc are 0 to 1"),
        ("stsb", "5.1", "the labels of stsb are 0 to 5"),
        ("stsb", "nan", "label 'nan'"),
        ("stsb", "high", "label 'high'"),
    ],
)
def test_other_labels_are_refused(tmp_path, name, label, message):
    table(tmp_path / name / "train.parquet", sentence1=["a", "c"], sentence2=["b", "d"], label=["1", label])
    with pytest.raises(InputError, match=message):
        read(tmp_path, name, "train")


def test_empty_damaged_and_undecodable_files(tmp_path):
    tsv(tmp_path / "sst2/train.tsv", ("sentence", "label"))
    with pytest.raises(InputError, match=r"sst2/train.tsv: no examples"):
        read(tmp_path, "sst2", "train")
    text(tmp_path / "sst2/train.tsv", "sentence\tlabel", "fine\t1", "caf\u00e9\t1", encoding="latin-1")
    with pytest.raises(InputError, match=r"train.tsv, line 3: not UTF-8"):
        read(tmp_path, "sst2", "train")
    text(tmp_path / "sst2/train.parquet", "no parquet")
    with pytest.raises(InputError, match=r"train.parquet: not a readable parquet file"):
        read(tmp_path, "sst2", "train")
    table(tmp_path / "sst2/train.parquet", sentence=pa.array([None], pa.string()), label=[1])
    with pytest.raises(InputError, match="example 0: sentence is None"):
        read(tmp_path, "sst2", "train")


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
@pytest.mark.parametrize(
    ("name", "split", "count", "positive"),
    [
        ("cola", "train", 8551, 6023),
        ("cola", "validation", 1043, 719),
        ("sst2", "train", 60614, 33828),
        ("mrpc", "train", 4076, 2753),
        ("mrpc", "validation", 1725, 1147),
        ("stsb", "train", 5749, None),
        ("stsb", "validation", 1500, None),
        ("rte", "train", 2490, 1241),
        ("rte", "validation", 277, 131),
        ("qnli", "validation", 5463, 2761),
    ],
)
def test_real_files(name, split, count, positive):
    rows = read(REAL, name, split)
    assert len(rows) == count
    assert all("\t" not in row[column] and row[column] for row in rows for column in glue_files.SENTENCES[name])
    if positive is not None:
        assert sum(row["label"] for row in rows) == positive


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_test_splits_have_no_labels(tmp_path):
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte/dev.tsv").symlink_to(REAL / "RTE/test.tsv")
    with pytest.raises(InputError, match=r"label '-1'.*test split"):
        read(tmp_path, "rte", "validation")
