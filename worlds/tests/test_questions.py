"""The mini scale's multiple-choice questions: the same bytes everywhere, right choices true, wrong ones not."""

import hashlib
import json
from collections import Counter

import pytest

from flexround.errors import InputError
from flexround.tasks.commonsense.choices import KINDS, answered
from synthetic import choices as mini
from synthetic import language
from synthetic.world import World

SHA256 = "c4ed627794bb3aa8a8391681d04041ffc10c7259f8d4aa100d09a04280837bf2"


def test_more_questions_than_there_are_is_an_error():
    with pytest.raises(InputError, match=r"piqa has not many more than .* examples; ask for fewer"):
        mini.make("piqa", 20_000, 10, seed=0)


@pytest.fixture(scope="module")
def made():
    return {name: mini.make(name, train=200, test=1000, seed=0) for name in KINDS}


def test_the_bytes_are_the_same_on_every_machine(made):
    text = json.dumps([made, mini.sheets(200, 0, answered)], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256


def test_fields_counts_and_labels(made):
    for name, splits in made.items():
        assert [len(splits[split]) for split in ("train", "test")] == [200, 1000]
        rows = [*splits["train"], *splits["test"]]
        assert len({str(row) for row in rows}) == 1200
        posed = [KINDS[name].pose(row) for row in rows]
        assert all(set(row) >= set(KINDS[name].fields) for row in rows)
        assert all(len(set(question["choices"])) == len(question["choices"]) for question in posed)
        places = Counter(question["gold"] for question in posed)
        assert min(places.values()) > 0.8 * 1200 / len(posed[0]["choices"])
        assert len(places) == len(posed[0]["choices"])


def said(fact):
    template = language.agree(language.TEMPLATES[fact.relation][0], plural=False)
    return template.format(s=language.noun_phrase(fact.subject), o=language.object_names(fact)[0])


def test_right_choices_are_true_and_wrong_ones_are_not(made):
    true = {said(fact) for fact in World().facts}
    for row in made["openbookqa"]["test"]:
        so = [f"{row['question_stem']} {choice}" in true for choice in row["choices"]["text"]]
        assert so == [letter == row["answerKey"] for letter in "ABCD"]
    for row in made["arc_challenge"]["test"]:
        _, rest = row["question"].removesuffix(" ?").removeprefix("which ").split(" ", 1)
        so = [not true.isdisjoint({f"{name} {rest}", f"the {name} {rest}"}) for name in row["choices"]["text"]]
        assert so == [letter == row["answerKey"] for letter in "ABCD"]


def test_winogrande_is_so_of_the_right_one_alone(made):
    true = {said(fact) for fact in World().facts}
    for row in made["winogrande"]["test"]:
        before, rest = row["sentence"].removesuffix(" .").split("_")
        assert row["option1"] in before
        assert row["option2"] in before
        so = [f"{row[f'option{number}']}{rest}" in true for number in "12"]
        assert so == [number == row["answer"] for number in "12"]


def test_boolq_is_balanced_and_follows_from_the_category(made):
    world = World()
    answers = Counter()
    for row in made["boolq"]["test"]:
        (found,) = (
            (question, entity.category)
            for question in mini.GENERAL
            for members in world.categories.values()
            for entity in members
            if row["question"] == question.format(s=language.noun_phrase(entity))
        )
        assert row["answer"] == (found[1] in mini.GENERAL[found[0]].split())
        answers[row["answer"]] += 1
    assert 400 < answers[True] < 600


def test_sheets_are_right_and_single_questions_less_reliable():
    def ask(name, row):
        asked.append(answered(name, row))
        return asked[-1]

    asked = []
    made = mini.sheets(6000, 0, ask)
    lines = [line for part in made for line in part]
    assert 0 <= len(lines) - 6000 < mini.SHEET
    assert {len(part) for part in made} == {1, mini.SHEET}
    assert all(line.goes_on == (len(part) > 1) for part in made for line in part)
    assert all(line.text.startswith("\n\n") == line.goes_on for line in lines)
    assert all(line.answer.startswith(" ") and line.answer.strip() for line in lines)
    said = [(line.text.removeprefix("\n\n"), line.answer) for line in lines]
    right = [one == answers[0] for one, answers in zip(said, asked, strict=True)]
    alone = [so for line, so in zip(lines, right, strict=True) if not line.goes_on]
    assert all(so for line, so in zip(lines, right, strict=True) if line.goes_on)
    assert 0.17 < len(alone) / len(lines) < 0.23
    assert 0.55 < sum(alone) / len(alone) < 0.65
