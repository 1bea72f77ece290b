"""The mini WebNLG: same bytes everywhere, apart in facts and categories, references that say what the triples say."""

import hashlib
import json

import numpy as np
import pytest

from flexround.tasks.webnlg import files as webnlg_files
from synthetic import corpus, language, triples
from synthetic.world import Entity, Fact, World

SHA256 = "7362f250873049a172bb5f58176c96fba888697c480d18c5f80ae4d3e6094faf"
CATEGORY = {entity.name: name for name, entities in World().categories.items() for entity in entities}


@pytest.fixture(scope="module")
def made():
    return triples.make(train=1500, test=300, seed=0)


def facts(row):
    return [tuple(triple.split(" : ")) for triple in row["context"].split(" | ")]


def names(word):
    """Return the ways to say an object."""
    return {word, language.SYNONYMS.get(word, word), language.pluralise(word)}


def test_the_bytes_are_the_same_on_every_machine(made):
    assert hashlib.sha256(json.dumps(made).encode()).hexdigest() == SHA256
    assert triples.make(5, 5, seed=1) != triples.make(5, 5, seed=0)


def test_rows_are_those_of_the_files(made, tmp_path):
    for split, rows in made.items():
        entries = [
            {
                "category": row["category"],
                "modifiedtripleset": [
                    dict(zip(("subject", "property", "object"), fact, strict=True)) for fact in facts(row)
                ],
                "lexicalisations": [{"comment": "good", "lex": text} for text in row["references"]],
            }
            for row in rows
        ]
        numbered = [{str(number): entry} for number, entry in enumerate(entries, 1)]
        (tmp_path / f"{split}.json").write_text(json.dumps({"entries": numbered}))
        assert [row | {"seen": None} for row in webnlg_files.read(tmp_path, split)] == [
            row | {"seen": None} for row in rows
        ]


def test_counts_and_categories(made):
    assert len(made["train"]) == 1500
    assert [row["seen"] for row in made["test"]] == [True] * 300 + [False] * 300
    assert {row["category"] for row in made["train"]} == {row["category"] for row in made["test"][:300]}
    assert {row["category"] for row in made["train"]}.isdisjoint(row["category"] for row in made["test"][300:])
    assert set(CATEGORY.values()) == {row["category"] for row in made["train"] + made["test"]}
    for row in made["train"] + made["test"]:
        assert row["seen"] == (row["category"] in triples.SEEN)
        assert {CATEGORY[subject] for subject, *_ in facts(row)} == {row["category"]}


def test_no_facts_are_told_twice(made):
    told = [frozenset(facts(row)) for rows in made.values() for row in rows]
    assert len(set(told)) == len(told) == 2100


def test_one_to_three_different_facts_about_one_subject(made):
    rows = [row for rows in made.values() for row in rows]
    assert {len(facts(row)) for row in rows} == {1, 2, 3}
    for row in rows:
        assert len({subject for subject, *_ in facts(row)}) == 1
        assert len({relation for _, relation, _ in facts(row)}) == len(facts(row))


def test_most_relations_of_unseen_categories_are_known(made):
    known = {relation for row in made["train"] for _, relation, _ in facts(row)}
    asked = [relation for row in made["test"][300:] for _, relation, _ in facts(row)]
    assert set(asked) - known == {"diet", "tone", "players"}
    assert sum(relation in known for relation in asked) > 0.8 * len(asked)


def test_references_say_all_facts(made):
    for row in made["train"] + made["test"]:
        assert len(row["references"]) in (2, 3)
        for text in row["references"]:
            words = text.split()
            assert words[-1] == "."
            for subject, _, thing in facts(row):
                assert subject in words
                assert names(thing) & set(words)


def test_references_have_different_templates_the_usual_first(made):
    counts = set()
    for row in made["train"]:
        if len(facts(row)) > 1:
            continue
        ((subject, relation, thing),) = facts(row)
        hidden = names(thing) | {subject}
        wordings = [" ".join("*" if word in hidden else word for word in text.split()) for text in row["references"]]
        assert len(set(wordings)) == len(wordings)
        usual = language.agree(language.TEMPLATES[relation][0], plural=False).format(s="*", o="*") + " ."
        assert wordings[0].replace("the ", "") == usual.replace("the ", "")
        counts.add(len(wordings))
    assert counts == {2, 3}


def test_a_leading_subject_is_not_repeated():
    falcon = Entity("falcon", "animal", "bird")
    told = [Fact(falcon, "diet", Entity("roots", "diet")), Fact(falcon, "colour", Entity("brown", "colour"))] * 2
    templates = ["{s} eats|eat {o}", "{s} is|are {o}", "the food of {s} is|is {o}", "{s} has|have a {o} colour"]
    assert triples.say(told, templates, np.random.default_rng(0)) == (
        "the falcon eats roots and is brown , and the food of the falcon is roots , and the falcon has a brown colour ."
    )


def test_records_of_the_pretraining_text_are_of_seen_categories_and_say_what_they_list():
    lines = corpus.sentences(300, seed=0, kinds="records")
    records = [line.split(" means ") for line in lines if " means " in line]
    assert 170 < len(records) < 230
    for listed, told in records:
        rows = [split_fact(words) for words in listed.split(" , ")]
        assert {CATEGORY[subject] for subject, _, _ in rows} <= set(triples.SEEN)
        for subject, _, thing in rows:
            assert subject in told
            assert any(name in told for name in names(thing))


def split_fact(words):
    relation = next(name for name in language.TEMPLATES if f" {name} " in words)
    subject, _, thing = words.partition(f" {relation} ")
    return subject, relation, thing
