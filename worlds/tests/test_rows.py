"""The rows of the mini data sets: nothing twice, labels and answers that follow from the world and not from one word.

That they are the same on every machine, and in the layouts of the real data sets, ``test_frozen.py`` says.
"""

from collections import Counter

import numpy as np
import pytest

from flexround.errors import InputError
from flexround.tasks.commonsense.choices import KINDS, answered
from synthetic import articles, choices, glue, language, squad, triples
from synthetic.world import World


@pytest.fixture(scope="module")
def tasks():
    return {name: glue.make(name, train=1600, validation=800, seed=0) for name in glue.NAMES}


@pytest.fixture(scope="module")
def asked():
    return {name: choices.make(name, train=200, test=1000, seed=0) for name in KINDS}


@pytest.fixture(scope="module")
def told():
    return triples.make(train=1500, test=300, seed=0)


@pytest.fixture(scope="module")
def corpora():
    return {name: articles.make(name, 300, 60, 0) for name in ("wikitext2", "ptb")}


def texts(row):
    return tuple(value for value in row.values() if isinstance(value, str))


def facts(row):
    return [tuple(triple.split(" : ")) for triple in row["context"].split(" | ")]


def said(fact):
    template = language.agree(language.TEMPLATES[fact.relation][0], plural=False)
    return template.format(s=language.noun_phrase(fact.subject), o=language.object_names(fact)[0])


def test_nothing_is_made_twice(tasks, asked, told, corpora):
    made = [[texts(row) for rows in splits.values() for row in rows] for splits in tasks.values()]
    made += [[str(row) for rows in splits.values() for row in rows] for splits in asked.values()]
    made.append([frozenset(facts(row)) for rows in told.values() for row in rows])
    for splits in corpora.values():
        lines = [row["text"] for rows in splits.values() for row in rows]
        made.append([line for line in lines if line and not line.startswith(" = ")])
    for examples in made:
        assert len(set(examples)) == len(examples) > 300
    with pytest.raises(InputError, match=r"piqa has not many more than .* examples; ask for fewer"):
        choices.make("piqa", 20_000, 10, seed=0)


# GLUE


@pytest.mark.parametrize("name", ["cola", "mrpc", "qqp", "mnli", "qnli", "rte"])
def test_single_words_do_not_give_the_label_away(tasks, name):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

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


def test_similarities_use_the_whole_scale(tasks):
    labels = [row["label"] for row in tasks["stsb"]["train"]]
    assert np.histogram(labels, bins=5, range=(0, 5))[0].min() > 40


# SQuAD


def test_the_answer_is_in_a_sentence_about_the_subject_asked_for():
    rows = squad.make(train=400, validation=1, seed=0)["train"]
    for row in rows:
        start = row["answers"]["answer_start"][0]
        before = row["context"].rfind(" . ", 0, start) + 1
        sentence = row["context"][before : row["context"].find(" .", start)]
        subject = {word.removesuffix("es") for word in sentence.split()} | set(sentence.split())
        words = row["question"].split()
        assert subject & ({word.removesuffix("s") for word in words} | {word + "s" for word in words} | set(words))
    lengths = [len(row["context"].split()) for row in rows]
    assert 40 <= np.median(lengths) <= 60
    assert 0.05 < np.mean([length > 80 for length in lengths]) < 0.3


# multiple choice


def test_right_choices_are_true_and_wrong_ones_are_not(asked):
    true = {said(fact) for fact in World().facts}
    for row in asked["openbookqa"]["test"]:
        so = [f"{row['question_stem']} {choice}" in true for choice in row["choices"]["text"]]
        assert so == [letter == row["answerKey"] for letter in "ABCD"]
    for row in asked["arc_challenge"]["test"]:
        _, rest = row["question"].removesuffix(" ?").removeprefix("which ").split(" ", 1)
        so = [not true.isdisjoint({f"{name} {rest}", f"the {name} {rest}"}) for name in row["choices"]["text"]]
        assert so == [letter == row["answerKey"] for letter in "ABCD"]
    for row in asked["winogrande"]["test"]:
        before, rest = row["sentence"].removesuffix(" .").split("_")
        assert row["option1"] in before
        assert row["option2"] in before
        so = [f"{row[f'option{number}']}{rest}" in true for number in "12"]
        assert so == [number == row["answer"] for number in "12"]


def test_right_choices_are_everywhere_and_differ_from_the_others(asked):
    for name, splits in asked.items():
        posed = [KINDS[name].pose(row) for rows in splits.values() for row in rows]
        assert all(len(set(question["choices"])) == len(question["choices"]) for question in posed)
        places = Counter(question["gold"] for question in posed)
        assert len(places) == len(posed[0]["choices"])
        assert min(places.values()) > 0.8 * len(posed) / len(places)


def test_sheets_are_right_and_single_questions_less_reliable():
    answers = []

    def ask(name, row):
        answers.append(answered(name, row))
        return answers[-1]

    made = choices.sheets(6000, 0, ask)
    lines = [line for part in made for line in part]
    assert 0 <= len(lines) - 6000 < choices.SHEET
    assert {len(part) for part in made} == {1, choices.SHEET}
    assert all(line.goes_on == (len(part) > 1) == line.text.startswith("\n\n") for part in made for line in part)
    pairs = [(line.text.removeprefix("\n\n"), line.answer) for line in lines]
    right = [pair == of_question[0] for pair, of_question in zip(pairs, answers, strict=True)]
    alone = [so for line, so in zip(lines, right, strict=True) if not line.goes_on]
    assert all(so for line, so in zip(lines, right, strict=True) if line.goes_on)
    assert 0.17 < len(alone) / len(lines) < 0.23
    assert 0.55 < sum(alone) / len(alone) < 0.65


# articles


def test_articles_tell_what_their_heading_says_and_sentences_are_those_of_the_penn_treebank(corpora):
    lines = [row["text"] for row in corpora["wikitext2"]["train"]]
    headings = [index for index, text in enumerate(lines) if text.startswith(" = ")]
    assert len(headings) == 300
    for index in headings:
        assert lines[index - 1] == lines[index + 1] == ""
        assert lines[index][3:-4] in lines[index + 2]
        assert lines[index + 2].count(" . ") >= 2
    words = [word for row in corpora["ptb"]["train"] for word in row["text"].split()]
    assert 0.01 < words.count("<unk>") / len(words) < 0.1
    assert words.count("N") > 50
    assert not any(word.isdigit() or word in ".,?" for word in words)
    assert len(set(words)) <= 401


# WebNLG


def test_references_say_all_facts_of_one_subject(told):
    assert {row["category"] for row in told["train"]}.isdisjoint(row["category"] for row in told["test"][300:])
    known = {relation for row in told["train"] for _, relation, _ in facts(row)}
    assert {relation for row in told["test"][300:] for _, relation, _ in facts(row)} - known == {
        *("diet", "tone", "players")
    }
    for row in told["train"] + told["test"]:
        assert 1 <= len(facts(row)) == len({relation for _, relation, _ in facts(row)}) <= 3
        assert len({subject for subject, *_ in facts(row)}) == 1
        assert len(set(row["references"])) == len(row["references"]) in (2, 3)
        for text in row["references"]:
            words = text.split()
            assert words[-1] == "."
            for subject, _, thing in facts(row):
                assert subject in words
                assert {thing, language.SYNONYMS.get(thing, thing), language.pluralise(thing)} & set(words)
