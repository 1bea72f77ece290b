"""The mini GLUE: GLUE's shape, the same bytes everywhere, labels that follow from texts but not from single words."""

import hashlib
import json
import re

import numpy as np
import pytest

from synthetic import glue, language
from synthetic.world import ORDERS, World

SHA256 = "eb3a320b833b3944a370e61bcce95ea2ce1352af903ea00b6212d82a10caad4b"
SINGULAR = {language.pluralise(e.name): e.name for es in World().categories.values() for e in es}
KINDS = {e.name: e.kind for es in World().categories.values() for e in es}
CANONICAL = {synonym: name for name, synonym in language.SYNONYMS.items()}


@pytest.fixture(scope="module")
def tasks():
    return {name: glue.make(name, train=1600, validation=800, seed=0) for name in glue.NAMES}


def texts(row):
    return tuple(value for value in row.values() if isinstance(value, str))


def test_the_bytes_are_the_same_on_every_machine(tasks):
    assert hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest() == SHA256


@pytest.mark.parametrize(
    ("name", "columns", "labels"),
    [
        ("cola", "sentence", {0, 1}),
        ("sst2", "sentence", {0, 1}),
        ("mrpc", "sentence1 sentence2", {0, 1}),
        ("qqp", "question1 question2", {0, 1}),
        ("mnli", "premise hypothesis", {0, 1, 2}),
        ("qnli", "question sentence", {0, 1}),
        ("rte", "sentence1 sentence2", {0, 1}),
    ],
)
def test_columns_labels_and_counts_are_those_of_glue(tasks, name, columns, labels):
    for split, rows in tasks[name].items():
        assert all(list(row) == [*columns.split(), "label", "idx"] for row in rows)
        assert {row["label"] for row in rows} == labels
        assert [row["idx"] for row in rows] == list(range(1600 if split == "train" else 800))


def test_similarities_are_real_and_use_the_whole_scale(tasks):
    labels = [row["label"] for row in tasks["stsb"]["train"]]
    assert all(isinstance(label, float) and 0.0 <= label <= 5.0 for label in labels)
    assert np.histogram(labels, bins=5, range=(0, 5))[0].min() > 40


def test_no_example_is_made_twice(tasks):
    for splits in tasks.values():
        made = [texts(row) for rows in splits.values() for row in rows]
        assert len(set(made)) == len(made)


def test_mismatched_examples_are_about_other_categories(tasks):
    world = World()
    categories = {entity.name: name for name, entities in world.categories.items() for entity in entities}
    for split, own in (("train", glue.MATCHED), ("validation_mismatched", glue.MISMATCHED)):
        for row in tasks["mnli"][split]:
            assert subject_of(row["premise"], categories) in own


def subject_of(sentence, categories):
    """The category of the subject of a sentence's first clause."""
    return categories[read(sentence)[0][0]]


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


def marked(row):
    """The words of both texts, marked by their text so that they count separately."""
    return " ".join(f"{place}{word}" for place, text in enumerate(texts(row)) for word in text.split())


@pytest.mark.parametrize("name", ["mnli", "rte"])
def test_labels_follow_from_what_the_sentences_say(tasks, name):
    columns = ("premise", "hypothesis") if name == "mnli" else ("sentence1", "sentence2")
    for split, rows in tasks[name].items():
        right = [expected(row[columns[0]], row[columns[1]]) for row in rows]
        if name == "rte":
            right = [int(label > 0) for label in right]
        agreement = np.mean([row["label"] == label for row, label in zip(rows, right, strict=True)])
        assert 0.92 < agreement < 0.98, split


def expected(premise, hypothesis):
    """Whether the hypothesis follows (0), may hold (1) or cannot hold (2), from the sentences themselves."""
    ((subject, relation, thing, negated),) = read(hypothesis)
    for other, told, its, _ in read(premise):
        if relation in ORDERS and told == relation:
            if subject in (its, KINDS[its]) and thing == other:
                return 0 if negated else 2
            if subject in (other, KINDS[other]) and thing == its:
                return 2 if negated else 0
        elif told == relation and subject in (other, KINDS[other]):
            return 2 if (its == thing) == negated else 0
    return 1


def read(sentence):
    """The facts of a sentence as tuples of subject, relation, object and negation."""
    facts = []
    for part in re.split(r" , (?:and|while|also) ", sentence.removesuffix(" .")):
        facts.append(parse(part.split(" and ")[0]))
        subject = part.split(" and ")[0]
        for predicate in part.split(" and ")[1:]:
            noun = re.match(r"(the )?\S+", subject)[0]
            facts.append(parse(f"{noun} {predicate}"))
    return facts


def parse(clause):
    for pattern, relation, negated in PATTERNS:
        if found := pattern.fullmatch(clause):
            return name_of(found["s"]), relation, name_of(found["o"]), negated
    raise AssertionError(clause)


def patterns():
    """Every way to put a fact, as a regular expression with its relation and whether it is negated."""
    for relation, templates in language.TEMPLATES.items():
        for template in templates:
            for negated in (False, True) if "|" in template else (False,):
                for plural in (False, True):
                    words = language.agree(language.negate(template) if negated else template, plural)
                    yield (
                        re.compile(words.format(s=r"(?P<s>(?:the )?\w+)", o=r"(?P<o>(?:the )?\w+)")),
                        relation,
                        negated,
                    )


PATTERNS = list(patterns())


def name_of(words):
    noun = words.removeprefix("the ")
    return SINGULAR.get(noun, CANONICAL.get(noun, noun))


def test_a_wrong_verb_or_order_is_what_is_unacceptable(tasks):
    sentences = {0: [], 1: []}
    for row in tasks["cola"]["train"]:
        sentences[row["label"]].append(row["sentence"])
    for label, share in ((1, 0.9), (0, 0.1)):
        plain = [re.sub(r"(the \w+) (near|behind|beside|opposite) the \w+", r"\1", s) for s in sentences[label]]
        right = np.mean([parses(sentence.removesuffix(" .")) for sentence in plain])
        assert (right > share) == (label == 1)


def parses(clause):
    """Whether a clause that begins with its subject is well formed."""
    noun = re.match(r"the (\w+) ", clause)
    if noun is None:
        return False
    plural = noun[1] in SINGULAR
    patterns = [
        re.escape(language.agree(template, plural)).replace(r"\{s\}", r"the \w+").replace(r"\{o\}", r"(the )?\w+")
        for templates in language.TEMPLATES.values()
        for template in templates
    ]
    return any(re.fullmatch(pattern, clause) for pattern in patterns)
