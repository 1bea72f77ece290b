"""The readers of data sets: whole files give the rows."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pytest
import real_files
from pyarrow import parquet

from flexround.errors import InputError
from flexround.tasks import commonsense, glue, language, squad, text, webnlg
from flexround.tasks.options import PosedOptions, StoriesOptions
from flexround.tasks.questions import KINDS

SHARD = "00000-of-00001.parquet"
EXAM = {"text": ["dry", "wet"], "label": ["A", "B"]}
CHOICES = {  # one example of each data set of multiple-choice questions, in the fields of the hub
    "boolq": {"passage": "Rain is wet.", "question": "is rain wet", "label": 1},
    "piqa": {"goal": "dry hair", "sol1": "use a towel", "sol2": "use a fork", "label": 0},
    "hellaswag": {
        "activity_label": "Roof repair",
        "ctx_a": "A man sits on a roof.",
        "ctx_b": "he",
        "endings": ["sings é.", "falls [step] asleep.", "eats.", "runs."],
        "label": "3",
    },
    "winogrande": {"sentence": "Ann saw Bea so _ waved.", "option1": "Ann", "option2": "Bea", "answer": "2"},
    "arc_easy": {"question": "How is rain?", "choices": EXAM, "answerKey": "B"},
    "arc_challenge": {"question": "How is rain?", "choices": EXAM | {"label": ["1", "2"]}, "answerKey": "2"},
    "openbookqa": {"question_stem": "Rain is", "choices": EXAM, "answerKey": "B"},
}
CONTEXT = "Zürich lies on a lake."
WIKI = ["", " = Zürich = \n", "", " Zürich lies on a lake .\u2028 It is old . \n"]


MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tZürich .\t<QUOTE>\n"
STSB = 'news\tMSRpar\t2012\t0001\t3.800\t"Zürich\ta\nnews\tMSRpar\t2012\t2\t0.5\tb\tc\turl\turl\n'


def question(name="q1", text="a lake", start=15):
    answers = {"text": [text], "answer_start": [start]}
    return {"id": name, "title": "Towns", "context": CONTEXT, "question": "Where?", "answers": answers}


def triples(category, facts, sentences):
    """Return an entry of WebNLG."""
    parts = ("subject", "property", "object")
    return {
        "category": category,
        "modifiedtripleset": [dict(zip(parts, fact, strict=True)) for fact in facts],
        "lexicalisations": [{"comment": comment, "lex": text} for comment, text in sentences],
        "size": "1",
    }


AIRPORT = triples(
    "Airport", [("Aarhus", "leader", "Ann")], [("good", "Ann leads Aarhus."), ("toFix", "Ann lead."), ("good", " ")]
)
ARTIST = triples(
    "Artist", [("Björk", "born", "1965"), ("Björk", "from", '"Reykjavík"')], [("good", "A"), ("good", "B")]
)
BARE = triples("City", [("Aarhus", "country", "Denmark")], [("bad", "No."), ("good", "")])
AIRPORT_ROW = {"category": "Airport", "seen": True, "context": "Aarhus : leader : Ann"}
AIRPORT_ROW |= {"references": ["Ann leads Aarhus."]}
ARTIST_ROW = {"category": "Artist", "seen": False, "context": 'Björk : born : 1965 | Björk : from : "Reykjavík"'}
ARTIST_ROW |= {"references": ["A", "B"]}


class Case(NamedTuple):
    """A reader: where its file lies, what is in it, what reads the folder of all, and the rows that are expected."""

    file: str
    content: Any
    read: Callable[[Path], Any]
    rows: Any


def rte(*rows):
    """Return rows of the hub's RTE from pairs and labels."""
    names = ("sentence1", "sentence2", "label", "idx")
    return [dict(zip(names, (*row, index), strict=True)) for index, row in enumerate(rows, 5)]


def released(name, split, file, text, *rows):
    """Return the case of a file as its authors released it: rows of texts and label."""
    names = (*glue.SENTENCES[name], "label", "idx")
    found = [dict(zip(names, (*row, index), strict=True)) for index, row in enumerate(rows)]
    return Case(f"{name}/{file}", text, lambda d: glue.read_released(d, name, split), found)


CASES = {
    "sst2": released("sst2", "validation", "test.tsv", "sentence\tlabel\n\u2028zürich \t1\n", ("\u2028zürich ", 1)),
    "mrpc": released("mrpc", "validation", "msr_paraphrase_test.txt", MRPC, ("Zürich .", "<QUOTE>", 1)),
    "stsb": released("stsb", "train", "sts-train.csv", STSB, ('"Zürich', "a", 3.8), ("b", "c", 0.5)),
    "glue": Case(
        f"rte/train-{SHARD}",
        rte(("Zürich", "b", 0), ("c", "d", 1)),
        lambda d: text.table(d / "rte", "train", glue.COLUMNS["rte"]),
        rte(("Zürich", "b", 0), ("c", "d", 1)),
    ),
    "squad": Case(
        f"plain_text/validation-{SHARD}",
        [question("q1") | {"more": 1}, question("q2", "Zürich", 0) | {"more": 2}],
        lambda d: text.table(d / "plain_text", "validation", squad.COLUMNS),
        [question("q1"), question("q2", "Zürich", 0)],
    ),
    "wikitext2": Case(
        f"wikitext-2-raw-v1/test-{SHARD}",
        [{"text": text or " \n"} for text in WIKI],
        lambda d: language.read(d, "wikitext2", "test"),
        [{"text": text} for text in WIKI],
    ),
    "ptb": Case(
        "ptb.valid.txt",
        " no it was n't black friday é \n but\u2028while the <unk> N % \n last",
        lambda d: language.read(d, "ptb", "validation"),
        [{"text": text} for text in ("no it was n't black friday é", "but\u2028while the <unk> N %", "last")],
    ),
    "webnlg": Case("train.json", [AIRPORT, BARE, ARTIST], lambda d: webnlg.read(d, "train"), [AIRPORT_ROW, ARTIST_ROW]),
    "webnlg test": Case("test.json", [ARTIST], lambda d: webnlg.read(d, "test"), [ARTIST_ROW]),
    "c4": Case(
        "en/c4-train.00000-of-01024.json.gz",
        [{"text": "Zürich", "url": "x"}, {"text": "b", "url": "x"}],
        lambda d: sorted(row["text"] for row in language.read_c4(d, "paper", 1, 2)),
        ["Zürich", "b"],
    ),
    "tinystories": Case(
        "tiny.utf8",
        "Once.\u2028\n<|endoftext|>\n Zürich. \n<|endoftext|>",
        lambda d: language.Stories(StoriesOptions(root="tiny.utf8", block_size=8)).rows(d),
        {"train": [{"text": "Once."}], "validation": [{"text": "Zürich."}]},
    ),
    "piqa": Case(
        "piqa/piqa_validation.parquet",
        [CHOICES["piqa"] | {"idx": 7}],
        lambda d: text.table(d / "piqa", "validation", KINDS["piqa"].fields),
        [CHOICES["piqa"]],
    ),
    **{
        f"posed {name}": Case(
            commonsense.POSED[name][0],
            content if name == "hellaswag" else [content | {"more": "é"}],
            lambda d, name=name: commonsense.read_posed(d, name),
            [KINDS[name].pose(CHOICES[name])],
        )
        for name, content in real_files.POSED.items()
    },
}


def write(path, content):
    """Write a text as it is, rows in the format that the path's name says; or call what writes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(content), path)
    elif path.suffix == ".json" and not isinstance(content, str):
        entries = [{str(number): entry} for number, entry in enumerate(content, 1)]
        path.write_text(json.dumps({"entries": entries}, ensure_ascii=False))
    elif path.suffix == ".gz":
        lines = [json.dumps(row, ensure_ascii=False) for row in content]
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    elif path.suffix in (".jsonl", ".bz2"):
        real_files.write_questions(path, content)
    else:
        path.write_bytes(content.encode())


@pytest.mark.parametrize("name", CASES)
def test_whole_files_give_the_rows(tmp_path, name):
    case = CASES[name]
    write(tmp_path / case.file, case.content)
    assert case.read(tmp_path) == case.rows


@pytest.mark.parametrize("name", ["glue", "squad", "wikitext2", "piqa"])
def test_shards_are_read_in_order_and_all_needed(tmp_path, name):
    case = CASES[name]
    folder, split = (tmp_path / case.file).parent, case.file.rpartition("/")[2].partition("-")[0].partition(".")[0]
    rows = [*case.content, *case.content] if name == "piqa" else case.content
    for number, row in enumerate(rows):
        write(folder / f"{split}-{number:05}-of-{len(rows):05}.parquet", [row])
    assert case.read(tmp_path) == (case.rows * 2 if name == "piqa" else case.rows)
    (folder / f"{split}-00000-of-{len(rows):05}.parquet").unlink()
    with pytest.raises(InputError):
        case.read(tmp_path)


def test_the_questions_asked_are_random_ones_and_always_the_same(tmp_path):
    for name, content in real_files.POSED.items():
        rows = content * 9 if name == "hellaswag" else [content | {"query": str(number)} for number in range(9)]
        real_files.write_questions(tmp_path / commonsense.POSED[name][0], rows)
    for path in (commonsense.TEST, commonsense.C4):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(" \r\n = Zürich\u2028 = \n\n one \n".encode())
    few, every = (commonsense.PosedCommonsense(PosedOptions(questions=count)).rows(tmp_path) for count in (4, 20))
    assert few["test"] == [{"text": " \n = Zürich\u2028 = \n\n one \n"}]
    assert few["train"] == [{"text": " = Zürich\u2028 = "}, {"text": " one "}]
    assert all(few[name] == every[name][:4] for name in KINDS)
    asked = [row["query"] for row in every["openbookqa"]]
    assert sorted(asked) == [str(number) for number in range(9)] != asked


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
