"""The world and the text to pretrain on: same bytes everywhere, consistent facts, agreeing words."""

import hashlib
import json

import numpy as np
import pytest

from flexround.tasks.commonsense.choices import answered
from synthetic import choices, corpus, language, triples
from synthetic.world import ORDERS, RELATIONS, Entity, Fact, World

CORPUS_SHA256 = "dafd1159aadfdc07bb7f196a36bd2b6f10ca55046eb51616fb030402d4a3ed86"
PAIRS_SHA256 = "d8da9f3b3b967b865849a6f2a62affd68068b20b2dd15278d02bf0b0df5b2320"
SHEETS_SHA256 = "47d8cf0dae1187a0a39c6f1392d0eecb7087e7e9961aaa5e773c9c8e96dd7b6e"


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def lines():
    return corpus.sentences(12000, seed=0)


def test_the_corpus_is_the_same_on_every_machine(lines):
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == CORPUS_SHA256
    sheets = choices.sheets(200, 0, answered)
    assert hashlib.sha256(json.dumps(sheets, sort_keys=True).encode()).hexdigest() == SHEETS_SHA256


def test_pairs_are_the_same_everywhere_and_of_both_kinds():
    pairs = corpus.pairs(3000, seed=0)
    assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest() == PAIRS_SHA256
    assert 0.4 < sum(follows for *_, follows in pairs) / len(pairs) < 0.6
    for first, second, _ in pairs:
        assert first[-1] in ".?"
        assert second[-1] in ".?"
    shared = {follows: [] for follows in (True, False)}
    for first, second, follows in pairs:
        shared[follows].append(len(set(first.split()) & set(second.split()) - {".", "the", "is"}) > 0)
    assert np.mean(shared[True]) > np.mean(shared[False]) + 0.2, "what goes together shares words"


def test_names_mean_one_thing_and_subjects_have_one_object_for_each_relation(world):
    names = [entity.name for entities in world.categories.values() for entity in entities]
    assert len(set(names)) == len(names)
    keys = [(fact.subject, fact.relation) for fact in world.facts]
    assert len(set(keys)) == len(keys)
    for fact in world.facts:
        if fact.relation != "kind":
            assert fact.subject.category in RELATIONS[fact.relation][0].split()
            assert fact.object.category == (RELATIONS[fact.relation][1] or fact.subject.category)


def test_no_order_of_the_world_has_a_cycle(world):
    for relation in ORDERS:
        heavier = {fact.subject: fact.object for fact in world.facts if fact.relation == relation}
        for start in heavier:
            seen, at = {start}, heavier[start]
            while at in heavier:
                assert at not in seen
                seen.add(at)
                at = heavier[at]


def test_a_contrary_cannot_hold_together_with_its_fact(world, rng):
    for fact in world.facts[:600]:
        if fact.relation == "kind":
            continue
        other = world.contrary(fact, rng)
        if fact.relation in ORDERS:
            assert other == Fact(fact.object, fact.relation, fact.subject)
        else:
            assert (other.subject, other.relation) == (fact.subject, fact.relation)
            assert other.object != fact.object


@pytest.mark.parametrize(
    ("template", "plural", "words"),
    [
        ("{s} lives|live in the {o}", False, "the otter lives in the lake"),
        ("{s} lives|live in the {o}", True, "the otters live in the lake"),
        ("the {o} is|is the home of {s}", True, "the lake is the home of the otters"),
        (language.negate("{s} lives|live in the {o}"), True, "the otters do not live in the lake"),
        (language.negate("{s} is|are fond of the {o}"), False, "the otter is not fond of the lake"),
    ],
)
def test_verbs_agree_with_what_precedes_them(rng, template, plural, words):
    fact = Fact(Entity("otter", "animal", "beast"), "habitat", Entity("lake", "habitat"))
    assert language.fill(template, fact, rng, plural) == words


def test_names_are_never_plural(rng):
    fact = Fact(Entity("anna", "person", "doctor"), "workplace", Entity("bank", "workplace"))
    assert language.fill("{s} works|work at the {o}", fact, rng, plural=True) == "anna works at the bank"


def test_the_corpus_covers_the_words_of_the_world(world, lines):
    words = {word for line in lines for word in line.split()}
    assert 600 <= len(words) <= 1500
    assert {entity.name for entities in world.categories.values() for entity in entities} <= words
    assert set(language.SYNONYMS) | set(language.SYNONYMS.values()) <= words


def test_a_leading_subject_is_not_repeated():
    falcon = Entity("falcon", "animal", "bird")
    told = [Fact(falcon, "diet", Entity("roots", "diet")), Fact(falcon, "colour", Entity("brown", "colour"))] * 2
    templates = ["{s} eats|eat {o}", "{s} is|are {o}", "the food of {s} is|is {o}", "{s} has|have a {o} colour"]
    assert triples.say(told, templates, np.random.default_rng(0)) == (
        "the falcon eats roots and is brown , and the food of the falcon is roots , and the falcon has a brown colour ."
    )


def test_records_of_the_pretraining_text_are_of_seen_categories_and_say_what_they_list(world):
    lines = corpus.sentences(300, seed=0, kinds="records")
    records = [line.split(" means ") for line in lines if " means " in line]
    assert 170 < len(records) < 230
    category = {entity.name: name for name, entities in world.categories.items() for entity in entities}
    for listed, told in records:
        for words in listed.split(" , "):
            relation = next(name for name in language.TEMPLATES if f" {name} " in words)
            subject, _, thing = words.partition(f" {relation} ")
            assert category[subject] in triples.SEEN
            assert subject in told
            assert any(name in told for name in (thing, language.SYNONYMS.get(thing, thing), language.pluralise(thing)))
