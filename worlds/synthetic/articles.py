"""The mini language-modelling corpora: one in WikiText's layout, one in the Penn Treebank's.

``wikitext2`` has articles that tell all that is true of a subject and of others like it. ``ptb`` has single sentences
about trade, towns and people, in the plural or reported, without punctuation; rare words are ``<unk>`` and numbers are
``N``. Both are of the same world, of which the mini models have read in their pretraining.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from synthetic import language
from synthetic.glue_pairs import Source
from synthetic.world import Entity, Fact, pick, shuffled

Rows = list[dict[str, str]]
SALES = (
    "{city} sold N {goods} last {season}",
    "{city} exported N {goods} to {other} in {season}",
    "sales of {goods} in {city} rose N %",
    "the price of {goods} from {city} fell to N from N",
)
SEASONS = ("spring", "summer", "autumn", "winter")
SAID = ("said", "says", "reported that", "expects that")
PLACES = ("city", "person", "food", "game", "vehicle", "garment", "furniture")
NUMBER = re.compile(r"\b\d+\b")
KNOWN = 400  # words of ``ptb`` that are not rare: the most frequent ones of ``SAMPLE`` sentences
SAMPLE = 4_000


def make(name: str, train: int, validation: int, seed: int) -> dict[str, Rows]:
    """Make one corpus: so many articles of ``wikitext2``, or sentences of ``ptb``; the world is always the same.

    Returns:
        ``train`` and ``validation``, rows as of ``flexround.tasks.language.read``. No paragraph or sentence
        occurs twice; the headings of articles do.
    """
    categories, texts = CORPORA[name]
    made = texts(Source.of("mini articles", name, seed, categories=categories))
    counts = {"train": train, "validation": validation}
    return {
        split: [{"text": line} for lines in islice(made, count) for line in lines] for split, count in counts.items()
    }


def documents(count: int, seed: int) -> Rows:
    """Make the stand-in for C4: whole articles without their headings, a row each, none of them twice."""
    return [{"text": " ".join(line.strip() for line in lines[3:])} for lines in pages(count, seed)]


def pages(count: int, seed: int) -> list[list[str]]:
    """Make articles, a list of their lines each, none of them twice."""
    return list(islice(articles(Source.of("mini documents", seed)), count))


def articles(source: Source) -> Iterator[list[str]]:
    """Yield articles: a heading between blank lines, then a paragraph for the subject and each of some of its like."""
    seen: set[str] = set()
    while True:
        subject = source.subject()
        others = [source.subject(unlike=subject) for _ in range(1 + int(source.rng.integers(2)))]
        paragraphs = [paragraph(source, entity) for entity in (subject, *others)]
        if seen.isdisjoint(paragraphs):
            seen.update(paragraphs)
            yield ["", f" = {subject.name} = \n", "", *paragraphs]


def paragraph(source: Source, subject: Entity) -> str:
    """Return all that is true of a subject, one to three facts a sentence, in any order."""
    rng = source.rng
    mixed = iter(shuffled(rng, source.world.about(subject)))
    sentences = []
    while told := list(islice(mixed, 1 + int(rng.integers(3)))):
        sentences.append(language.statement(told, rng) + " .")
    return f" {' '.join(sentences)} \n"


def sentences(source: Source) -> Iterator[list[str]]:
    """Yield single sentences of words that are not rare."""
    sample = Source.of("mini articles", "known words", categories=source.categories)
    counts = Counter(word for _ in range(SAMPLE) for word in sentence(sample).split())
    known = {word for word, _ in counts.most_common(KNOWN)}
    seen: set[str] = set()
    while True:
        line = " ".join(word if word in known else "<unk>" for word in sentence(source).split())
        if line not in seen:
            seen.add(line)
            yield [line]


def sentence(source: Source) -> str:
    """Return a sentence without punctuation, numbers as ``N``."""
    words = pick(source.rng, (sale, comparison, report, view))(source)
    return NUMBER.sub("N", words.replace(" ,", ""))


def sale(source: Source) -> str:
    """Say how a city's product sells."""
    rng = source.rng
    city, other = (pick(rng, source.world.categories["city"]) for _ in range(2))
    goods = next(fact.object for fact in source.world.about(city) if fact.relation == "product")
    words = {"city": city.name, "other": other.name, "goods": language.pluralise(goods.name)}
    return pick(rng, SALES).format(**words, season=pick(rng, SEASONS))


def comparison(source: Source) -> str:
    """Tell a true fact of each of two subjects of one category."""
    subject = source.subject()
    facts = [true_fact(source, entity) for entity in (subject, source.subject(unlike=subject))]
    return language.statement(facts, source.rng, plural=True)


def report(source: Source) -> str:
    """Let somebody tell a true fact."""
    person = pick(source.rng, source.world.categories["person"])
    told = language.clause(true_fact(source, source.subject()), source.rng, plural=True)
    return f"{person.name} {pick(source.rng, SAID)} {told}"


def view(source: Source) -> str:
    """Speak well or badly of something."""
    person = pick(source.rng, source.world.categories["person"])
    return language.opinion(source.subject(), person, source.chance(0.5), source.rng)


def true_fact(source: Source, subject: Entity) -> Fact:
    """Return one of the true facts about a subject, but not its kind, which has no plural."""
    return pick(source.rng, source.world.about(subject)[:-1])


CORPORA: dict[str, tuple[tuple[str, ...], Callable[[Source], Iterator[list[str]]]]] = {  # categories (all), texts
    "wikitext2": ((), articles),
    "ptb": (PLACES, sentences),
}
