"""The mini WebNLG: made-up facts about one subject as triples, and sentences that put them into words.

The test set has subjects of the categories of the training set and, as many, of four others. Most relations of the
others are known from the first; ``diet``, ``tone`` and ``players`` are not.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from numpy.random import Generator

from synthetic import language
from synthetic.glue_pairs import Source
from synthetic.world import Fact

Rows = list[dict[str, Any]]
SEEN = ("person", "city", "food", "plant", "vehicle", "tool", "furniture")
UNSEEN = ("animal", "instrument", "garment", "game")
TRIPLES = 3  # most of one subject


def make(train: int, test: int, seed: int) -> dict[str, Rows]:
    """Make ``train`` contexts from ``SEEN``, and for the test ``test`` from ``SEEN`` and as many from ``UNSEEN``.

    Returns:
        ``train`` and ``test``, entries as ``tasks.webnlg.read`` returns them, with two or three references. No set of
        triples occurs twice.
    """
    seen = Source.of("mini triples", seed, categories=SEEN)
    unseen = dataclasses.replace(seen, categories=UNSEEN)
    told: set[frozenset[Fact]] = set()
    parts = {"train": [seen] * train, "test": [seen] * test + [unseen] * test}
    return {
        split: [entry(fresh_facts(source, told), seen.rng) for source in sources] for split, sources in parts.items()
    }


def fresh_facts(source: Source, told: set[frozenset[Fact]]) -> list[Fact]:
    """Return facts about one subject that are not in ``told``, which grows."""
    while frozenset(facts := source.facts(source.subject(), 1 + int(source.rng.integers(TRIPLES)))) in told:
        pass
    told.add(frozenset(facts))
    return facts


def entry(facts: Sequence[Fact], rng: Generator) -> dict[str, Any]:
    """Return facts about one subject as a row.

    The first reference has the usual wording of each fact, and no two the same template: the most likely text is then
    one of the references, and what it loses, it loses by what it says.
    """
    category = facts[0].subject.category
    templates = [language.TEMPLATES[fact.relation] for fact in facts]
    mixed = [(usual, *rng.permutation(others).tolist()) for usual, *others in templates]
    chosen = list(zip(*mixed, strict=True))[: 2 + int(rng.integers(2))]
    return {
        "category": category,
        "seen": category in SEEN,
        "context": " | ".join(f"{fact.subject.name} : {fact.relation} : {fact.object.name}" for fact in facts),
        "references": [say(facts, templates, rng) for templates in chosen],
    }


def say(facts: Sequence[Fact], templates: Sequence[str], rng: Generator) -> str:
    """Join facts about one subject, each by its template, to one sentence; a leading subject is not repeated."""
    subject = language.noun_phrase(facts[0].subject) + " "
    pairs = zip(templates, facts, strict=True)
    clauses = [language.fill(template, fact, rng, plural=False) for template, fact in pairs]
    words = clauses[0]
    for before, clause in itertools.pairwise(clauses):
        shared = before.startswith(subject) and clause.startswith(subject)
        words += f" and {clause.removeprefix(subject)}" if shared else f" , and {clause}"
    return words + " ."
