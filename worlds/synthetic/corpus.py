"""The text that the mini language models are pretrained on: facts, stories, dialogues, quizzes and opinions.

Only ``truth`` speaks of the world as it is. In a story or dialogue the later sentences repeat, generalise, contrast or
ask what the first one makes up, and a quiz ends with a verdict on two sentences.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import NamedTuple

from synthetic import glue_pairs, language, triples
from synthetic.glue_pairs import Source
from synthetic.world import Fact, kind_of, pick, shuffled

INFERENCE = ("yes", "maybe", "no")  # by label of ``glue_pairs.infer``
COMPARISON = ("different", "same")  # by label of ``glue_pairs.mrpc`` and ``qqp``
ANSWERED = ("answered", "unanswered")  # by label of ``glue_pairs.qnli``
VERDICTS = re.compile(rf" (?:{'|'.join((*INFERENCE, *COMPARISON, *ANSWERED))}) \.$")
END = re.compile(r"(?<= [.?]) ")  # between two sentences


class Line(NamedTuple):
    """Text to pretrain on."""

    text: str  # up to the answer
    answer: str = ""  # what it ends with, with the space before it
    goes_on: bool = False  # with the line before it; it begins no text of its own


def sentences(count: int, seed: int, kinds: str = "plain") -> list[str]:
    """Return ``count`` lines of one to four lower-case sentences each, words and punctuation separated by spaces.

    ``kinds`` is a key of ``KINDS``.
    """
    source = Source.of("mini corpus", seed)
    return [pick(source.rng, KINDS[kinds])(source) for _ in range(count)]


def answered(line: str) -> Line:
    """Return a line that may end with a verdict, which is its answer."""
    verdict = VERDICTS.search(line)
    return Line(line[: verdict.start()], verdict[0]) if verdict else Line(line)


def pairs(count: int, seed: int) -> list[tuple[str, str, bool]]:
    """Return ``count`` pairs of texts, and whether the second goes with the first: BERT's next-sentence task.

    A quiz is a pair by itself, without its verdict. Any other line is cut after its first sentence; half of the time
    the rest is that of another line.
    """
    source = Source.of("mini pairs", seed)
    made: list[tuple[str, str, bool]] = []
    while len(made) < count:
        if source.chance(0.5):
            first, second, _, agrees = posed(source)
            made.append((first, second, agrees))
            continue
        line, other = (pick(source.rng, (story, dialogue, review))(source) for _ in range(2))
        follows = source.chance(0.5)
        first, *rest = END.split(line)
        second = " ".join(rest if follows else END.split(other)[1:])
        if second:
            made.append((first, second, follows))
    return made


def truth(source: Source) -> str:
    """Return one to three true facts about one subject."""
    rng = source.rng
    *facts, kind = source.world.about(source.subject())
    if source.chance(0.2):
        return language.statement([kind], rng) + " ."
    told = shuffled(rng, facts)[: 1 + int(rng.integers(3))]
    return language.statement(told, rng, plural=source.chance(0.5)) + " ."


def story(source: Source) -> str:
    """Return made-up facts, one of them then said again, generalised, or contrasted with what does not hold."""
    facts = source.facts(source.subject(), 1 + int(source.rng.integers(3)))
    fact = pick(source.rng, facts)
    if source.chance(0.5):
        fact = Fact(kind_of(fact.subject), fact.relation, fact.object)
    if source.chance(0.3):
        again = language.clause(source.world.contrary(fact, source.rng), source.rng, negated=True)
    else:
        again = language.clause(fact, source.rng, plural=source.chance(0.5))
    return f"{source.say(facts)} {again} ."


def dialogue(source: Source) -> str:
    """Return made-up facts about one or two subjects, then a question and its answer."""
    fact = source.questionable()
    told = source.say([fact, *glue_pairs.distract(source, fact, int(source.rng.integers(2)))])
    answer = pick(source.rng, language.object_names(fact))
    return f"{told} {language.question(fact, source.rng, plural=source.chance(0.5))} {answer} ."


def quiz(source: Source) -> str:
    """Return two sentences and a verdict on whether they agree, say the same, or answer each other."""
    first, second, verdict, _ = posed(source)
    return f"{first} {second} {verdict} ."


def posed(source: Source) -> tuple[str, str, str, bool]:
    """Return two sentences, the verdict on them, and whether it is that they agree."""
    task, verdicts, agreement = pick(source.rng, QUIZZES)
    source = dataclasses.replace(source, relations=glue_pairs.PLAIN)
    label = int(source.rng.integers(len(verdicts)))
    return (*task(source, label), verdicts[label], label == agreement)


def review(source: Source) -> str:
    """Return one to three opinions about one thing, all good or all bad."""
    thing, positive = source.subject(), source.chance(0.5)
    person = pick(source.rng, source.world.categories["person"])
    count = 1 + int(source.rng.integers(3))
    return " ".join(f"{language.opinion(thing, person, positive, source.rng)} ." for _ in range(count))


def record(source: Source) -> str:
    """Return made-up facts as a list, and what they say as a sentence; of the categories that WebNLG trains on."""
    source = dataclasses.replace(source, categories=triples.SEEN)
    facts = source.facts(source.subject(), 1 + int(source.rng.integers(triples.TRIPLES)))
    listed = " , ".join(f"{fact.subject.name} {fact.relation} {fact.object.name}" for fact in facts)
    templates = [pick(source.rng, language.TEMPLATES[fact.relation]) for fact in facts]
    return f"{listed} means {triples.say(facts, templates, source.rng)}"


QUIZZES = (  # task, its verdicts, the label of agreement
    (glue_pairs.mnli, INFERENCE, 0),
    (glue_pairs.mrpc, COMPARISON, 1),
    (glue_pairs.qqp, COMPARISON, 1),
    (glue_pairs.qnli, ANSWERED, 0),
)
KINDS: dict[str, tuple[Callable[[Source], str], ...]] = {
    "plain": (truth, story, dialogue, quiz, quiz, quiz, review),
    "facts": (*[truth] * 3, review),
    "records": (truth, story, dialogue, review, *[record] * 8),
}
