"""The rows of the mini data sets: nothing twice, and labels that follow from the world and not from one word.

That the rows are the same on every machine, ``test_frozen.py`` says, so all else that is true of them stays true.
"""

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from flexround.errors import InputError
from flexround.tasks.questions import KINDS
from synthetic import articles, choices, glue, language, triples
from synthetic.world import World


@pytest.fixture(scope="module")
def tasks():
    return {name: glue.make(name, train=1600, validation=800, seed=0) for name in glue.NAMES}


@pytest.fixture(scope="module")
def asked():
    return {name: choices.make(name, train=200, test=1000, seed=0) for name in KINDS}


def texts(row):
    return tuple(value for value in row.values() if isinstance(value, str))


def said(fact):
    template = language.agree(language.TEMPLATES[fact.relation][0], plural=False)
    return template.format(s=language.noun_phrase(fact.subject), o=language.object_names(fact)[0])


def test_nothing_is_made_twice(tasks, asked):
    made = [[texts(row) for rows in splits.values() for row in rows] for splits in tasks.values()]
    made += [[str(row) for rows in splits.values() for row in rows] for splits in asked.values()]
    told = triples.make(train=1500, test=300, seed=0)
    made.append([frozenset(row["context"].split(" | ")) for rows in told.values() for row in rows])
    for name in ("wikitext2", "ptb"):
        lines = [row["text"] for rows in articles.make(name, 300, 60, 0).values() for row in rows]
        made.append([line for line in lines if line and not line.startswith(" = ")])
    for examples in made:
        assert len(set(examples)) == len(examples) > 300
    with pytest.raises(InputError, match=r"piqa has not many more than .* examples; ask for fewer"):
        choices.make("piqa", 20_000, 10, seed=0)


@pytest.mark.parametrize("name", ["cola", "mrpc", "qqp", "mnli", "qnli", "rte"])
def test_single_words_do_not_give_the_label_away(tasks, name):
    train, validation = [rows for split, rows in tasks[name].items() if split != "validation_mismatched"]
    # The words of each text count separately.
    joined = [
        [" ".join(f"{i}{w}" for i, t in enumerate(texts(r)) for w in t.split()) for r in s] for s in (train, validation)
    ]
    labels = [np.array([row["label"] for row in rows]) for rows in (train, validation)]
    counts = CountVectorizer(token_pattern=r"\S+", binary=True).fit(joined[0])
    model = LogisticRegression(C=0.1, max_iter=300).fit(counts.transform(joined[0]), labels[0])
    accuracy = model.score(counts.transform(joined[1]), labels[1])
    assert accuracy < np.bincount(labels[1]).max() / len(labels[1]) + 0.06


def test_right_choices_are_true_and_wrong_ones_are_not(asked):
    true = {said(fact) for fact in World().facts}
    for row in asked["openbookqa"]["test"]:
        so = [f"{row['question_stem']} {choice}" in true for choice in row["choices"]["text"]]
        assert so == [letter == row["answerKey"] for letter in "ABCD"]
    for row in asked["winogrande"]["test"]:
        _, rest = row["sentence"].removesuffix(" .").split("_")
        so = [f"{row[f'option{number}']}{rest}" in true for number in "12"]
        assert so == [number == row["answer"] for number in "12"]
