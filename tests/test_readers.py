"""The readers of data sets: whole files give the rows, and rows that are wrong are refused by file and number."""

import json

import pytest
import real_files
from pyarrow import parquet
from reader_cases import AIRPORT, ARTIST, BARE, CASES, CHOICES, question, write

from flexround.errors import InputError
from flexround.tasks.commonsense import files as choice_files
from flexround.tasks.commonsense import posed
from flexround.tasks.commonsense.choices import KINDS, answered
from flexround.tasks.commonsense.options import PosedOptions
from flexround.tasks.glue.options import GlueOptions
from flexround.tasks.glue.task import Glue
from flexround.tasks.language import files as language
from flexround.tasks.webnlg import files as webnlg


@pytest.mark.parametrize("name", CASES)
def test_whole_files_give_the_rows(tmp_path, name):
    case = CASES[name]
    write(tmp_path / case.file, case.content)
    assert case.read(tmp_path) == case.rows


def test_titles_of_hellaswag_end_with_a_full_stop_and_answers_begin_with_the_right_one():
    """How all seven are posed, the cases of posed files say, which are written by hand."""
    row = CHOICES["hellaswag"] | {"ctx_a": "How to sing [title] Breathe. [step] Do it.  ", "ctx_b": ""}
    assert KINDS["hellaswag"].pose(row)["query"] == "Roof repair: How to sing. Breathe. Do it."
    query = "Question: How is rain?\nAnswer:"
    assert answered("arc_easy", CHOICES["arc_easy"]) == [(query, " wet"), (query, " dry")]
    waved = [(f"Ann saw Bea so {name}", " waved.") for name in ("Bea", "Ann")]
    assert answered("winogrande", CHOICES["winogrande"]) == waved


@pytest.mark.parametrize("name", ["glue", "squad", "wikitext2", "piqa"])
def test_shards_are_read_in_order_and_all_needed(tmp_path, name):
    case = CASES[name]
    folder, split = (tmp_path / case.file).parent, case.file.rpartition("/")[2].partition("-")[0].partition(".")[0]
    rows = [*case.content, *case.content] if name == "piqa" else case.content
    for number, row in enumerate(rows):
        write(folder / f"{split}-{number:05}-of-{len(rows):05}.parquet", [row])
    assert case.read(tmp_path) == (case.rows * 2 if name == "piqa" else case.rows)
    (folder / f"{split}-00000-of-{len(rows):05}.parquet").unlink()
    with pytest.raises(InputError, match=rf"{split}-00001-of-.*parquet: is one of {len(rows)} shards, but there are"):
        case.read(tmp_path)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.file.endswith(".parquet")])
def test_parquet_without_rows_or_a_needed_column_is_refused(tmp_path, name):
    case, path = CASES[name], tmp_path / CASES[name].file
    column = next(iter(case.content[0]))
    write(path, case.content)
    table = parquet.read_table(path)
    parquet.write_table(table.slice(0, 0), path)
    with pytest.raises(InputError, match=r"parquet: nothing that is .*; fetch"):
        case.read(tmp_path)
    parquet.write_table(table.drop_columns([column]), path)
    with pytest.raises(InputError, match=rf"parquet: no column {column}; it has "):
        case.read(tmp_path)


def wrong(**change):
    """Return a writer of photographs with a mistake."""
    return lambda path: real_files.photographs(path, **change)


def samples(*names, more=()):
    """Return a writer of images with other names."""
    return lambda path: real_files.samples(path, names, more)


def not_utf8(path):
    """Write a parquet file with a text that is not UTF-8."""
    write(path, [{"text": "ab"}])
    path.write_bytes(path.read_bytes().replace(b"ab", b"\xff\xfe"))


def changed(name, **change):
    """Return a case's rows with a change of the last one."""
    *others, last = CASES[name].content
    return [*others, last | change]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cola", "gj04\t1\t\ta\n\n", "train.tsv, line 2: .*1 columns, expected 4.; mend it or fetch it again"),
        ("cola", "gj04\t1\t\ta\ngj04\t2\t\ta\n", "train.tsv, line 2: .*label '2'; the labels of cola are 0 to 1"),
        ("sst2", "sentence\tlabel\nzürich\tgood\n", "test.tsv, line 2: .*'good'"),
        ("sst2", "sentence\tlabel\n", "test.tsv: nothing"),
        ("stsb", "a\tb\tc\td\t5.1\ta\tb\n", "sts-train.csv, line 1: .*label '5.1'; the labels of stsb are 0 to 5"),
        ("stsb", "a\tb\tc\td\tnan\ta\tb\n", "label 'nan'"),
        ("stsb", "a\tb\tc\td\t5.0\ta\tb\tc\n", "line 1: .*8 columns, expected 7 or 9"),
        ("glue", changed("glue", label=2), "example 1: .*label 2; the labels of rte are 0 to 1"),
        ("glue", changed("glue", label=-1), "label -1 .-1 stands for a hidden label: this is a test split"),
        ("glue", changed("glue", label=None), "example 1: not an example of rte .*None"),
        ("glue", changed("glue", sentence2=None), "example 1: .*sentence2 is None"),
        ("squad", [question(), question("q2", start=14)], "example 1: .*answer of q2 is not at its answer_start"),
        ("squad", [question("q3", start=-7)], "answer of q3 is not at its answer_start"),
        ("squad", [question("q1", "", 3)], "q1 has no answer"),
        ("squad", [question("q1"), question("q2"), question("q2")], "the id q2 occurs twice"),
        ("squad", changed("squad", answers={"txt": ["a"]}), "not a question of SQuAD 1.1"),
        ("wikitext2", [{"text": "a"}, {"text": None}], "example 1: .*text is None, no text"),
        ("wikitext2", [{"text": " \n"}], "no text"),
        ("wikitext2", not_utf8, "parquet: not a readable parquet file"),
        ("ptb", " \n\n", "ptb.valid.txt: no text"),
        ("ptb", lambda path: path.write_bytes(b"fine\r\nZ\xfcrich\n"), r"ptb.valid.txt, line 2: not UTF-8 \(invalid"),
        ("c4", [{"url": "x"}], "line 1: not a document of C4"),
        ("c4", [{"text": 3}], "line 1: .*text is 3, no text"),
        ("c4", [], "nothing that is a document of C4"),
        ("tinystories", "Once.", "1 stories can't be split"),
        ("photographs", wrong(labels=("3", "0")), "images.csv, line 3: .*TrueLabel is 0, not 1 to 3"),
        ("photographs", wrong(header="ImageId,URL,Label,Author"), "images.csv, line 2: .*TrueLabel"),
        ("photographs", wrong(labels=("3", "1", "1")), "images.csv has 3 images instead of 2"),
        ("photographs", wrong(left_out=(1,)), "1 images are missing, the first is 8.png"),
        ("photographs", real_files.samples, "no images.csv in it"),
        ("samples", samples("n1_a.JPEG", "n2_b.JPEG"), "2 images of 2 classes"),
        ("samples", samples("n1_a.JPEG", "n1_b.JPEG", "n2.JPEG"), "3 images of 2 classes"),
        ("samples", samples("n1.JPEG", "n2.JPEG", more=("n3.JPEG",)), "n3.JPEG can't be read"),
        ("piqa", changed("piqa", goal=None), "example 0: not a question of piqa .no goal"),
        ("piqa", changed("piqa", label=2), "choice 2 of 2"),
        ("piqa", changed("piqa", label=-1), "choice -1 of 2"),
        ("piqa", changed("piqa", sol2=" "), "a choice is no text or empty"),
        ("winogrande", changed("winogrande", sentence="no blank"), "example 0: not a question of winogrande"),
        ("arc_easy", changed("arc_easy", answerKey="E"), "not a question of arc_easy"),
        ("hellaswag", changed("hellaswag", ctx_b=1), "not a question of hellaswag"),
        ("posed boolq", changed("posed boolq", query=None), "line 1: not a question of boolq"),
        ("posed piqa", [real_files.POSED["piqa"], {"query": "q"}], "line 2: not a question of piqa"),
        ("posed winogrande", changed("posed winogrande", gold=2), "line 1: not a question .*choice 2 of 2"),
        ("posed openbookqa", [], "openbook_qa.jsonl: nothing that is a question"),
        ("posed hellaswag", real_files.POSED["hellaswag"] * 2 + "a: b\n1\nc\n", "line 13: .*hellaswag.*1 endings"),
        ("webnlg", [BARE], "nothing that is an entry of WebNLG 2017 with a good reference"),
        ("webnlg", [*CASES["webnlg"].content, {}], "entry 4: not an entry"),
        ("webnlg", changed("webnlg", lexicalisations=[{}]), "entry 3: not an entry.*comment"),
        ("webnlg", json.dumps({"entries": [{"1": ARTIST}] * 2}), "train.json: not a file of WebNLG 2017 .*'2'"),
        ("webnlg", '{"rows": []}', "train.json: not a file of WebNLG 2017 .*entries"),
        ("webnlg test", [AIRPORT, BARE], "entry 2: .*Aarhus : country : Denmark has no good reference"),
    ],
)
def test_rows_that_are_wrong_are_refused_by_file_and_number(tmp_path, name, content, message):
    case = CASES[name]
    write(tmp_path / case.file, content)
    with pytest.raises(InputError, match=message) as caught:
        case.read(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_training_rows_of_the_authors_files_can_be_few(tmp_path):
    for split in ("train", "dev", "test"):
        write(tmp_path / f"sst2/{split}.tsv", "sentence\tlabel\n" + "".join(f"{split} {n}\t1\n" for n in range(50)))
    options = {"name": "sst2", "root": "", "released": True, "max_length": 8}
    assert [row["idx"] for row in Glue(GlueOptions(**options)).rows(tmp_path)["train"]] == list(range(100))
    rows = Glue(GlueOptions(**options, train=20)).rows(tmp_path)
    drawn = [row["sentence"] for row in rows["train"]]
    assert (len(set(drawn)), len(rows["validation"])) == (20, 50)
    assert {text.split()[0] for text in drawn} == {"train", "dev"}
    with pytest.raises(InputError, match="samples=101: choose from 1 to 100"):
        Glue(GlueOptions(**options, train=101)).rows(tmp_path)
    with pytest.raises(ValueError, match="released: qqp is read from parquet of the hub"):
        GlueOptions(**options | {"name": "qqp"})


def test_the_questions_asked_are_random_ones_and_always_the_same(tmp_path):
    for name, content in real_files.POSED.items():
        rows = content * 9 if name == "hellaswag" else [content | {"query": str(number)} for number in range(9)]
        real_files.write_questions(tmp_path / choice_files.POSED[name][0], rows)
    for path in (posed.TEST, posed.C4):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(" \r\n = Zürich\u2028 = \n\n one \n".encode())
    few, every = (posed.PosedCommonsense(PosedOptions(questions=count)).rows(tmp_path) for count in (4, 20))
    assert few["test"] == [{"text": " \n = Zürich\u2028 = \n\n one \n"}]
    assert few["train"] == [{"text": " = Zürich\u2028 = "}, {"text": " one "}]
    assert all(few[name] == every[name][:4] for name in KINDS)
    asked = [row["query"] for row in every["openbookqa"]]
    assert sorted(asked) == [str(number) for number in range(9)] != asked


def test_few_shot_examples_come_from_the_training_split(tmp_path):
    row = CHOICES["piqa"]
    with pytest.raises(InputError, match=r"piqa: validation.parquet .* missing; params/sources.yaml says where"):
        choice_files.read(tmp_path, "piqa", train=False)
    write(tmp_path / "piqa/piqa_validation.parquet", [row])
    with pytest.raises(InputError, match=r"piqa: train\.parquet .* missing; .*set shots to \[0\]"):
        choice_files.read(tmp_path, "piqa", train=True)
    write(tmp_path / "piqa/piqa_train.parquet", [row, row])
    assert len(choice_files.read(tmp_path, "piqa", train=True)) == 2
    write(tmp_path / "piqa/tiny_train.parquet", [row])
    with pytest.raises(InputError, match=r"piqa_train\.parquet: tiny_train\.parquet beside it may be"):
        choice_files.read(tmp_path, "piqa", train=True)


def test_rows_of_webnlg_for_training_and_for_testing(tmp_path):
    again = AIRPORT | {"lexicalisations": [{"comment": "good", "lex": "Aarhus is led by Ann."}]}
    write(tmp_path / "test.json", [AIRPORT, ARTIST, again])
    entries = webnlg.read(tmp_path, "test")
    airport, artist = (entry["context"] for entry in entries[:2])
    assert [tuple(row.values()) for row in webnlg.training_rows(entries)] == [
        (airport, "Ann leads Aarhus."),
        (artist, "A"),
        (artist, "B"),
        (airport, "Aarhus is led by Ann."),
    ]
    pooled = webnlg.unique_contexts(entries)
    assert [row["references"] for row in pooled] == [["Ann leads Aarhus.", "Aarhus is led by Ann."], ["A", "B"]]
    assert [(row["context"], row["seen"]) for row in pooled] == [(airport, True), (artist, False)]
    assert entries[0]["references"] == ["Ann leads Aarhus."], "the entries are left as they were"


def test_documents_of_c4(tmp_path):
    texts = [[f"{shard} {index}" for index in range(300)] for shard in "ab"]
    for number, of_shard in enumerate(texts):
        write(tmp_path / f"en/c4-train.{number:05}-of-01024.json.gz", [{"text": text} for text in of_shard])
    first, second = texts
    assert language.read_c4(tmp_path, "release", 1, 5) == [{"text": text} for text in first[:3]]
    drawn = [row["text"] for row in language.read_c4(tmp_path, "paper", 2, 200)]
    assert len(set(drawn)) == 200
    assert set(drawn) < {*first, *second}
    assert drawn != sorted(drawn)
    assert 60 < sum(text in first for text in drawn) < 140
    assert len(language.read_c4(tmp_path, "paper", 1, 1000)) == 300
    with pytest.raises(InputError, match=r"c4-train.00002-of-01024.json.gz is missing"):
        language.read_c4(tmp_path, "paper", 3, 5)
