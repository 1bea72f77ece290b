"""The sentence-pair tasks of the mini GLUE: one function for each task, from a label to two texts.

The labels cannot be read off single words: each text alone is drawn in the same way for every label, and only what the
two say about each other differs. The facts are made up, so that remembering the world does not help; what helps is
knowing its words (synonyms, kinds, converses) and its grammar.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

from numpy.random import PCG64, Generator

from flexround.machine.seeding import derive
from synthetic import language
from synthetic.world import ORDERS, RELATIONS, VALUES, Entity, Fact, World, kind_of, pick, shuffled

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
# Relations of so few objects that the mini models can learn from some thousand pairs which of them differ
PLAIN = tuple(name for name, (subjects, objects) in RELATIONS.items() if objects in VALUES or subjects == "person")
NEGATED = 0.15  # share of the hypotheses with a negation
# Shares of the facts beside the point; the rest differs in nothing but a subject of the same category
OTHER_TOPIC, OTHER_RELATION = 0.5, 0.35
LONG = 0.03  # share of the pairs with several more facts, which exceed the mini models' maximum length


@dataclasses.dataclass(frozen=True)
class Source:
    """Where examples come from: subjects of some categories of a world, and one generator."""

    world: World
    rng: Generator
    categories: tuple[str, ...]
    relations: tuple[str, ...] = tuple(RELATIONS)

    @classmethod
    def of(cls, *purpose: object, categories: tuple[str, ...] = ()) -> Self:
        """Return a source of the subjects of some categories, or all, its generator seeded by a purpose."""
        world = World()
        return cls(world, Generator(PCG64(derive(*purpose))), categories or tuple(world.categories))

    def chance(self, probability: float) -> bool:
        """Return true with a probability."""
        return bool(self.rng.random() < probability)

    def subject(self, unlike: Entity | None = None) -> Entity:
        """Return any subject, or another one of the category of ``unlike``."""
        category = unlike.category if unlike else pick(self.rng, self.categories)
        return pick(self.rng, [entity for entity in self.world.categories[category] if entity != unlike])

    def facts(self, subject: Entity, count: int, without: Sequence[str] = ()) -> list[Fact]:
        """Make up facts of different relations about one subject."""
        relations = [
            name for name in self.world.relations(subject.category) if name in self.relations and name not in without
        ]
        return [self.world.imagine(subject, name, self.rng) for name in shuffled(self.rng, relations, count)]

    def questionable(self) -> Fact:
        """Make up a fact that one can ask for."""
        return self.facts(self.subject(), 1, ORDERS)[0]

    def say(self, facts: Sequence[Fact]) -> str:
        """Put facts, in any order, into one sentence with a full stop."""
        return language.statement(shuffled(self.rng, facts), self.rng) + " ."


def mnli(source: Source, label: int) -> tuple[str, str]:
    """Return premise and hypothesis; some of the premises hold a second fact, which doesn't matter."""
    return infer(source, label, fillers=int(source.chance(0.3)), general=0.1)


def rte(source: Source, label: int) -> tuple[str, str]:
    """Return premise and hypothesis, harder than ``mnli``'s: more second facts and kinds; 0 is entailment, 1 is not."""
    relation = pick(source.rng, (NEUTRAL, CONTRADICTION)) if label else ENTAILMENT
    return infer(source, relation, fillers=int(source.chance(0.5)), general=0.3)


def infer(source: Source, label: int, fillers: int, general: float) -> tuple[str, str]:
    """Return a premise and a hypothesis that follows (label 0), may or may not hold (1), or cannot hold (2).

    ``fillers`` is the number of further facts in the premise, ``general`` the share of the hypotheses that speak of the
    kind of the subject.
    """
    world, rng = source.world, source.rng
    (claim,) = source.facts(source.subject(), 1)
    negated, general_claim = source.chance(NEGATED), source.chance(general)
    if label == NEUTRAL:
        basis = dodge(source, claim, general_claim)
    else:
        basis = world.contrary(claim, rng) if negated == (label == ENTAILMENT) else claim
    premise = [basis, *distract(source, claim, fillers + 4 * source.chance(LONG))]
    if general_claim:
        claim = dataclasses.replace(claim, subject=kind_of(claim.subject))
    return source.say(premise), language.clause(claim, rng, negated=negated) + " ."


def dodge(source: Source, claim: Fact, general: bool) -> Fact:
    """Return a fact that says nothing about a claim: of another category, relation or, the hardest, subject."""
    kind = source.rng.random()
    if kind < OTHER_TOPIC:
        topic = pick(source.rng, [category for category in source.categories if category != claim.subject.category])
        return source.facts(pick(source.rng, source.world.categories[topic]), 1)[0]
    others = source.facts(claim.subject, 1, (claim.relation,))
    if kind < OTHER_TOPIC + OTHER_RELATION and others:
        return others[0]
    kin = [e for e in source.world.categories[claim.subject.category] if e.kind != claim.subject.kind or not general]
    other = pick(source.rng, [entity for entity in kin if entity not in (claim.subject, claim.object)])
    return source.world.imagine(other, claim.relation, source.rng)


def distract(source: Source, claim: Fact, count: int) -> list[Fact]:
    """Return facts beside a claim: of the same subject but other relations, or of another subject."""
    if source.chance(0.5):
        return source.facts(claim.subject, count, (claim.relation,))
    kin = [e for e in source.world.categories[claim.subject.category] if e.kind != claim.subject.kind]
    return source.facts(pick(source.rng, kin), count, ORDERS)


def mrpc(source: Source, label: int) -> tuple[str, str]:
    """Return two sentences of one or two facts each, which say the same (1) or differ in one point (0)."""
    facts = source.facts(source.subject(), 1 + int(source.chance(0.5)) + 3 * source.chance(LONG))
    same = list(facts) if label else alter(source, facts)
    return source.say(facts), source.say(same)


def alter(source: Source, facts: list[Fact]) -> list[Fact]:
    """Return facts one of which is contradicted or replaced, or, the hardest, all about another subject."""
    subject, change = facts[0].subject, source.rng.random()
    if change < 0.1:
        other = source.subject(unlike=subject)
        return [dataclasses.replace(fact, subject=other) for fact in facts]
    index = int(source.rng.integers(len(facts)))
    used = [fact.relation for fact in facts]
    new = source.facts(subject, 1, used) if change > 0.6 else []
    new = new or [source.world.contrary(facts[index], source.rng)]
    return [*facts[:index], *new, *facts[index + 1 :]]


def qqp(source: Source, label: int) -> tuple[str, str]:
    """Return two questions that ask for the same (1) or not (0)."""
    fact = other = source.questionable()
    if not label:
        other = dodge(source, fact, general=False)
    return ask(source, fact), ask(source, other)


def ask(source: Source, fact: Fact) -> str:
    """Return a question, half of the time with a beginning that means nothing."""
    return pick(source.rng, ("", "", "tell me , ", "please , ")) + language.question(fact, source.rng)


def qnli(source: Source, label: int) -> tuple[str, str]:
    """Return a question and a sentence that answers it (0) or not (1)."""
    asked = source.questionable()
    basis = dodge(source, asked, general=False) if label else asked
    facts = [basis, *distract(source, asked, int(source.chance(0.3)) + 4 * source.chance(LONG))]
    return language.question(asked, source.rng), source.say(facts)


def stsb(source: Source) -> tuple[tuple[str, str], float]:
    """Return two sentences and their similarity, 0 to 5, before noise.

    The same subject gives 2 points and one of its kind 1. Each of two facts gives 1.5, or 0.5 where only the relation
    is the same. The sentences are put together at random, so that every score from 0 to 5 occurs.
    """
    subject = source.subject()
    facts = source.facts(subject, 2, ORDERS)
    others = [entity for entity in source.world.categories[subject.category] if entity != subject]
    kin = [entity for entity in others if entity.kind == subject.kind]
    kinship = pick(source.rng, (2, 2, 1, 0))
    other = {2: subject, 1: pick(source.rng, kin), 0: pick(source.rng, others)}[kinship]
    score, changed = (2.0 if kinship == 2 else float(other.kind == subject.kind)), []
    spare = source.facts(subject, 2, (*ORDERS, *(fact.relation for fact in facts)))
    for fact in facts:
        overlap = pick(source.rng, (1.5, 1.5, 0.5, 0.0))
        kept = {1.5: fact, 0.5: source.world.contrary(fact, source.rng), 0.0: spare.pop() if spare else fact}[overlap]
        score += 1.5 if kept == fact else overlap
        changed.append(dataclasses.replace(kept, subject=other))
    return (source.say(facts), source.say(changed)), score
