"""The seven multiple-choice data sets: their prompts and their files."""

import bz2
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from flexround.errors import InputError
from flexround.tasks.commonsense.choices import KINDS, answered
from flexround.tasks.commonsense.files import read

REAL = Path(__file__).parents[2] / "shared" / "realdata" / "commonsense"
EXAM = {"text": ["dry", "wet"], "label": ["A", "B"]}
ROWS = {  # one example of each data set in the fields of the hub
    "boolq": {"passage": "Rain is wet.", "question": "is rain wet", "answer": True},
    "piqa": {"goal": "dry hair", "sol1": "use a towel", "sol2": "use a fork", "label": 0},
    "hellaswag": {
        "activity_label": "Roof repair",
        "ctx_a": "A man sits on a roof.",
        "ctx_b": "he",
        "endings": ["sings.", "falls [step] asleep.", "eats.", "runs."],
        "label": "3",
    },
    "winogrande": {"sentence": "Ann saw Bea so _ waved.", "option1": "Ann", "option2": "Bea", "answer": "2"},
    "arc_easy": {"question": "How is rain?", "choices": EXAM, "answerKey": "B"},
    "arc_challenge": {"question": "How is rain?", "choices": EXAM | {"label": ["1", "2"]}, "answerKey": "2"},
    "openbookqa": {"question_stem": "Rain is", "choices": EXAM, "answerKey": "B"},
}


def stored(row, name):
    return {field: row[field] for field in KINDS[name].fields}


def write_lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# prompts


def test_prompts_by_hand():
    posed = {name: KINDS[name].pose(row) for name, row in ROWS.items()}
    yes = {"query": "Rain is wet.\nQuestion: is rain wet?\nAnswer:", "choices": ["no", "yes"], "gold": 1}
    assert posed["boolq"] == yes
    towel = ["use a towel", "use a fork"]
    assert posed["piqa"] == {"query": "Question: dry hair\nAnswer:", "choices": towel, "gold": 0}
    assert posed["hellaswag"]["query"] == "Roof repair: A man sits on a roof. He"
    assert posed["hellaswag"]["choices"] == ["sings.", "falls asleep.", "eats.", "runs."]
    assert posed["hellaswag"]["gold"] == 3
    both = ["Ann saw Bea so Ann", "Ann saw Bea so Bea"]
    assert posed["winogrande"] == {"choices": both, "continuation": "waved.", "gold": 1}
    for name in ("arc_easy", "arc_challenge"):
        assert posed[name] == {"query": "Question: How is rain?\nAnswer:", "choices": ["dry", "wet"], "gold": 1}
    assert posed["openbookqa"] == {"query": "Rain is", "choices": ["dry", "wet"], "gold": 1}


def test_titles_of_hellaswag_end_with_a_full_stop():
    row = ROWS["hellaswag"] | {"ctx_a": "How to sing [title] Breathe. [step] Do it.  ", "ctx_b": ""}
    assert KINDS["hellaswag"].pose(row)["query"] == "Roof repair: How to sing. Breathe. Do it."


# files


@pytest.mark.parametrize("name", KINDS)
def test_parquet_of_the_hub(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    split = "test" if name in ("arc_easy", "arc_challenge", "openbookqa") else "validation"
    row = ROWS[name] | {"idx": 7}
    folder = folder / {"winogrande": "winogrande_xl", "boolq": "data"}.get(name, "")
    folder.mkdir(exist_ok=True)
    if name == "boolq":  # as in SuperGLUE
        row["label"] = int(row.pop("answer"))
    for file, rows in ((f"{split}-00000-of-00001.parquet", [row]), ("train.parquet", [row, row])):
        parquet.write_table(pa.Table.from_pylist(rows), folder / file)
    if name == "piqa":  # its files are named after it
        for file in folder.iterdir():
            file.rename(folder / f"piqa_{file.name}")
    assert read(tmp_path, name, train=False) == [stored(ROWS[name], name)]
    assert len(read(tmp_path, name, train=True)) == 2


def test_files_of_the_authors(tmp_path):
    write_lines(tmp_path / "boolq/val.jsonl", {"passage": "Rain is wet.", "question": "is rain wet", "label": True})
    write_lines(tmp_path / "piqa/valid.jsonl", {key: ROWS["piqa"][key] for key in ("goal", "sol1", "sol2")})
    (tmp_path / "piqa/valid-labels.lst").write_text("0\n")
    write_lines(tmp_path / "hellaswag/hellaswag_val.jsonl", ROWS["hellaswag"])
    write_lines(tmp_path / "winogrande/dev.jsonl", ROWS["winogrande"])
    choices = [{"text": "dry", "label": "A"}, {"text": "wet", "label": "B"}]
    exam = {"id": "1", "question": {"stem": "How is rain?", "choices": choices}, "answerKey": "B"}
    write_lines(tmp_path / "arc_easy/ARC-Easy-Test.jsonl", exam)
    write_lines(tmp_path / "openbookqa/test.jsonl", exam)
    for name in ("boolq", "hellaswag", "winogrande", "arc_easy"):
        assert read(tmp_path, name, train=False) == [stored(ROWS[name], name)]
    assert read(tmp_path, "piqa", train=False) == [stored(ROWS["piqa"], "piqa") | {"label": "0"}]
    assert read(tmp_path, "openbookqa", train=False)[0]["question_stem"] == "How is rain?"


def test_posed_questions_are_asked_as_all_others(tmp_path):
    posed = {name: KINDS[name].pose(row) for name, row in ROWS.items()}
    posed["boolq"]["query"] = "Passage: Rain is wet.\nQuestion: is rain wet?"
    posed["piqa"]["query"] = "Question: dry hair\n"
    posed["winogrande"]["context_options"] = posed["winogrande"].pop("choices")
    for name in ("arc_easy", "arc_challenge"):
        posed[name]["query"] = "Question: How is rain?"
    for name in set(KINDS) - {"hellaswag"}:
        write_lines(tmp_path / f"{name}.jsonl", posed[name])
        assert KINDS[name].pose(read(tmp_path, name, train=False)[0]) == KINDS[name].pose(ROWS[name])
    alike = {"context_options": ["I fed the cat", "I fed the cats"], "continuation": "fish.", "gold": 1}
    write_lines(tmp_path / "winogrande.jsonl", alike)
    options = {"option1": "cat", "option2": "cats", "answer": "2"}
    assert read(tmp_path, "winogrande", train=False) == [{"sentence": "I fed the _ fish."} | options]
    text = "Roof repair: A man sits on a roof. He\n3\nsings.\nfalls asleep.\neats.\nruns.\n"
    (tmp_path / "hellaswag_val_full.txt.bz2").write_bytes(bz2.compress(text.encode()))
    assert KINDS["hellaswag"].pose(read(tmp_path, "hellaswag", train=False)[0]) == posed["hellaswag"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_real_files():
    counts = {"boolq": 3270, "piqa": 1838, "hellaswag": 10042, "winogrande": 1267}
    counts |= {"arc_easy": 2376, "arc_challenge": 1172, "openbookqa": 500}
    for name, count in counts.items():
        rows = read(REAL, name, train=False)
        assert len(rows) == count
        golds = Counter(KINDS[name].pose(row)["gold"] for row in rows)
        assert min(golds[place] for place in range(2)) > 0.2 * count / (1 if len(golds) == 2 else 2)
    with pytest.raises(InputError, match=r"the train split of boolq is missing.*set shots to \[0\]"):
        read(REAL, "boolq", train=True)


# bad files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"goal": None}, "example 2: no goal; piqa has goal, sol1, sol2, label"),
        ({"label": 2}, "example 2: not a question of piqa .*choice 2 of 2"),
        ({"label": -1}, "choice -1 of 2"),
        ({"label": "x"}, "not a question of piqa .*invalid literal"),
        ({"sol2": " "}, "a choice is no text or empty"),
        ({"sol1": 3}, "a choice is no text or empty"),
    ],
)
def test_bad_rows_are_named(tmp_path, change, message):
    write_lines(tmp_path / "piqa/valid.jsonl", ROWS["piqa"], ROWS["piqa"] | change)
    with pytest.raises(InputError, match=message):
        read(tmp_path, "piqa", train=False)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("winogrande", {"sentence": "no blank"}),
        ("winogrande", {"answer": ""}),
        ("arc_easy", {"answerKey": "E"}),
        ("arc_easy", {"choices": {"text": ["dry"]}}),
        ("hellaswag", {"ctx_b": 1}),
        ("boolq", {"answer": "maybe"}),
    ],
)
def test_rows_that_cannot_be_asked(tmp_path, name, change):
    path = {"winogrande": "dev", "arc_easy": "ARC-Easy-Test", "hellaswag": "hellaswag_val", "boolq": "dev"}[name]
    write_lines(tmp_path / f"{name}/{path}.jsonl", ROWS[name] | change)
    with pytest.raises(InputError, match=f"{path}.jsonl, example 1: not a question of {name}"):
        read(tmp_path, name, train=False)


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "piqa/valid.jsonl"
    with pytest.raises(InputError, match=r"the validation split of piqa is missing\. Put piqa/val"):
        read(tmp_path, "piqa", train=False)
    write_lines(path)
    with pytest.raises(InputError, match=r"valid.jsonl: no examples"):
        read(tmp_path, "piqa", train=False)
    path.write_text('{"goal": 1}\n{"goal"')
    with pytest.raises(InputError, match=r"valid.jsonl, line 2: not JSON"):
        read(tmp_path, "piqa", train=False)
    path.write_text("[1]\n")
    with pytest.raises(InputError, match="line 1: '\\[1\\]' is not an example"):
        read(tmp_path, "piqa", train=False)
    write_lines(path, ROWS["piqa"])
    path.with_name("valid-labels.lst").write_text("0\n1\n")
    with pytest.raises(InputError, match=r"valid-labels.lst: 2 labels for the 1 examples of valid.jsonl"):
        read(tmp_path, "piqa", train=False)
    write_lines(tmp_path / "boolq.jsonl", {"query": "Rain", "gold": 0})
    with pytest.raises(InputError, match=r"boolq.jsonl: its lines are not the posed questions of boolq"):
        read(tmp_path, "boolq", train=False)
    (tmp_path / "hellaswag_val_full.txt").write_text("Rain: it\n0\n")
    with pytest.raises(InputError, match="2 lines are not six for each question"):
        read(tmp_path, "hellaswag", train=False)


def test_answers_of_a_question_begin_with_the_right_one():
    query = "Question: How is rain?\nAnswer:"
    assert answered("arc_easy", ROWS["arc_easy"]) == [(query, " wet"), (query, " dry")]
    waved = [(f"Ann saw Bea so {name}", " waved.") for name in ("Bea", "Ann")]
    assert answered("winogrande", ROWS["winogrande"]) == waved
