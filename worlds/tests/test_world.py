"""The offline world: same bytes everywhere, consistent facts, agreeing words, exact answer spans."""

import hashlib
import itertools
import json

import numpy as np
import pytest

from synthetic import corpus, language, squad
from synthetic.world import ORDERS, RELATIONS, Entity, Fact, World

CORPUS_SHA256 = "dafd1159aadfdc07bb7f196a36bd2b6f10ca55046eb51616fb030402d4a3ed86"
PAIRS_SHA256 = "d8da9f3b3b967b865849a6f2a62affd68068b20b2dd15278d02bf0b0df5b2320"
SQUAD_SHA256 = "4bdb86947f0e6318cc38acb82dd4e9b86f126229f73f79199189cbb672702959"


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def lines():
    return corpus.sentences(12000, seed=0)


@pytest.fixture(scope="module")
def spans():
    return squad.make(train=400, validation=200, seed=0)


def test_the_bytes_are_the_same_on_every_machine(lines, spans):
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == CORPUS_SHA256
    rows = [json.dumps(row, sort_keys=True) for split in ("train", "validation") for row in spans[split]]
    assert hashlib.sha256("\n".join(rows).encode()).hexdigest() == SQUAD_SHA256


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


def test_names_mean_one_thing(world):
    names = [entity.name for entities in world.categories.values() for entity in entities]
    assert len(set(names)) == len(names)


def test_a_subject_has_one_object_for_each_relation(world):
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


def test_statements_share_a_subject_only_where_it_comes_first(world):
    rng = np.random.default_rng(1)
    otter = Entity("otter", "animal", "beast")
    for _ in range(200):
        facts = [world.imagine(otter, "habitat", rng), world.imagine(otter, "diet", rng)]
        first, joined, _ = language.statement(facts, rng).partition(" and ")
        if joined and "," not in first:
            assert first.startswith("the otter ")


def test_no_article_stands_before_a_vowel(lines):
    words = " ".join(lines).split()
    assert not [after for before, after in itertools.pairwise(words) if before == "a" and after[0] in "aeiou"]


def test_the_corpus_covers_the_words_of_the_world(world, lines):
    words = {word for line in lines for word in line.split()}
    assert 600 <= len(words) <= 1500
    assert {entity.name for entities in world.categories.values() for entity in entities} <= words
    assert set(language.SYNONYMS) | set(language.SYNONYMS.values()) <= words


def test_answers_index_the_context(spans):
    for row in spans["train"] + spans["validation"]:
        answers = row["answers"]
        assert len(answers["text"]) == len(answers["answer_start"]) >= 1
        for text, start in zip(answers["text"], answers["answer_start"], strict=True):
            assert row["context"][start : start + len(text)] == text
    assert max(len(row["answers"]["text"]) for row in spans["train"]) == 1
    assert max(len(row["answers"]["text"]) for row in spans["validation"]) > 1


def test_the_answer_is_in_a_sentence_about_the_subject_asked_for(spans):
    for row in spans["train"]:
        start = row["answers"]["answer_start"][0]
        before = row["context"].rfind(" . ", 0, start) + 1
        sentence = row["context"][before : row["context"].find(" .", start)]
        subject = {word.removesuffix("es") for word in sentence.split()} | set(sentence.split())
        asked = row["question"].split()
        assert subject & ({word.removesuffix("s") for word in asked} | {word + "s" for word in asked} | set(asked))


def test_contexts_are_of_several_lengths_and_never_repeat(spans):
    lengths = [len(row["context"].split()) for row in spans["train"]]
    assert 40 <= np.median(lengths) <= 60
    assert 0.05 < np.mean([length > 80 for length in lengths]) < 0.3
    contexts = [row["context"] for split in spans.values() for row in split]
    assert len(set(contexts)) == len(contexts)
