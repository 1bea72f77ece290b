"""The mini SQuAD: paragraphs about several subjects, questions about one fact, answer spans.

The facts are made up. In some paragraphs the subjects are of one category and share relations, so that an answer is
found only by reading who has which property.
"""

from typing import Any

from synthetic import language
from synthetic.glue_pairs import Source
from synthetic.world import ORDERS, Fact, pick, shuffled

Rows = list[dict[str, Any]]
ANSWERS = 3  # acceptable answers of a validation question, as many as annotators
KIN = 0.4  # share of the paragraphs whose subjects are of one category
LONG = 0.15  # share of the paragraphs with further subjects


def make(train: int, validation: int, seed: int) -> dict[str, Rows]:
    """Make so many training questions with one answer each, validation questions with up to ``ANSWERS`` different ones.

    Returns:
        ``train`` and ``validation``, rows with the columns of the Hugging Face data set ``squad``: ``id``, ``title``,
        ``context``, ``question`` and ``answers``, which holds ``text`` and the character offsets ``answer_start``.
        No paragraph occurs twice.
    """
    source = Source.of("mini squad", seed)
    seen: set[str] = set()
    made: dict[str, Rows] = {}
    for split, count, answers in (("train", train, 1), ("validation", validation, ANSWERS)):
        rows: Rows = []
        while len(rows) < count:
            row = example(source, answers)
            if row is not None and row["context"] not in seen:
                seen.add(row["context"])
                rows.append({"id": f"{split}-{len(rows)}"} | row)
        made[split] = rows
    return made


def example(source: Source, answers: int) -> dict[str, Any] | None:
    """Return one row without its id, or none where the answer's words occur twice in their sentence."""
    stories = paragraph(source)
    told = [(sentence, fact) for sentence, facts in stories for fact in facts if fact.relation not in ORDERS]
    sentence, fact = pick(source.rng, told)
    spans = find(sentence, fact)
    if not spans:
        return None
    context = " ".join(text for text, _ in stories)
    start = context.index(sentence)
    chosen = sorted({pick(source.rng, spans) for _ in range(answers)})
    return {
        "title": fact.subject.category,
        "context": context,
        "question": language.question(fact, source.rng, plural=source.chance(0.5)),
        "answers": {
            "text": [sentence[begin:end] for begin, end in chosen],
            "answer_start": [start + begin for begin, _ in chosen],
        },
    }


def paragraph(source: Source) -> list[tuple[str, list[Fact]]]:
    """Return sentences in any order, each with its facts: two sentences about each of two or more subjects."""
    first = source.subject()
    related = source.chance(KIN)
    others = [
        entity
        for category, entities in source.world.categories.items()
        for entity in entities
        if (category == first.category) == related and entity != first
    ]
    count = 3 if source.chance(LONG) else 1
    stories = []
    for subject in (first, *shuffled(source.rng, others, count)):
        facts = source.facts(subject, 4)
        stories += [(source.say(part), part) for part in (facts[:2], facts[2:]) if part]
    return shuffled(source.rng, stories)


def find(sentence: str, fact: Fact) -> list[tuple[int, int]]:
    """Return the character spans that answer a question about ``fact``: its object, with and without "the".

    Empty where the object does not occur exactly once.
    """
    names = language.object_names(fact)
    padded = f" {sentence} "
    places = [(padded.index(f" {name} "), name) for name in names if padded.count(f" {name} ") == 1]
    if len(places) != 1 or sum(padded.count(f" {name} ") for name in names) != 1:
        return []
    start, name = places[0]
    spans = [(start, start + len(name))]
    return [*spans, (start - 4, start + len(name))] if sentence[:start].endswith("the ") else spans
