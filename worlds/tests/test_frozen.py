"""The readers of the real data sets give the frozen files back as the rows that the generators make."""

import pytest

from flexround.settings.layout import PARAMS
from flexround.settings.load import load_params
from flexround.tasks import protocol
from flexround.tasks.questions import KINDS
from synthetic import articles, choices, glue, squad, triples
from synthetic.files import CATEGORIES

TASKS = {name: task for name, task in load_params("mini").scale.tasks.items() if task.sources}


def questions():
    made = {name: choices.make(name, 200, 600, seed=0) for name in KINDS}
    texts = articles.make("wikitext2", 600, 600, seed=0)
    rows = {name: split["test"] for name, split in made.items()}
    rows |= {f"{name}-train": split["train"] for name, split in made.items()}
    rows |= {"validation": texts["validation"], "test": texts["train"], "train": articles.documents(600, seed=0)}
    return rows


def entries():
    made = triples.make(2500, 500, seed=0)
    return {split: [row | {"category": CATEGORIES[row["category"]]} for row in rows] for split, rows in made.items()}


MADE = {f"glue-{name}": lambda name=name: glue.make(name, 5000, 6000, seed=0) for name in glue.NAMES} | {
    "squad": lambda: squad.make(6000, 5000, seed=0),
    "wikitext2": lambda: articles.make("wikitext2", 800, 900, seed=0),
    "ptb": lambda: articles.make("ptb", 6000, 9000, seed=0),
    "wikitext2-lora": lambda: articles.make("wikitext2", 600, 900, seed=0),
    "ptb-lora": lambda: articles.make("ptb", 4500, 9000, seed=0),
    "webnlg": entries,
    "commonsense": questions,
}


@pytest.mark.parametrize("name", TASKS)
def test_frozen_rows_are_the_ones_that_are_made(name, tmp_path):
    (tmp_path / "mini").symlink_to(PARAMS / "data")
    read = protocol.build(TASKS[name]).rows(tmp_path)
    made = MADE[name]()
    assert list(read) == list(made)
    for split, rows in read.items():
        assert [list(row.items()) for row in rows] == [list(row.items()) for row in made[split]]
