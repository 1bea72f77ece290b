"""The seven multiple-choice data sets of the mini scale, in the fields of the original ones.

They are answered by knowing the world, of which the mini models have read in their pretraining: BoolQ by what a
thing is, the others by single facts. The right choice is at a random place; wrong ones are of the same relation.
"""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from flexround.errors import InputError
from synthetic import language
from synthetic.corpus import Line
from synthetic.glue_pairs import Source
from synthetic.world import ORDERS, RELATIONS, VALUES, Entity, Fact, pick, shuffled

Row = dict[str, Any]
T = TypeVar("T")
GOALS = {  # PIQA: relation -> what somebody wants, what is to be done
    "habitat": ("see {s}", "go to the {o}"),
    "diet": ("feed {s}", "bring some {o}"),
    "room": ("fetch {s}", "look in the {o}"),
    "workplace": ("meet {s}", "go to the {o}"),
    "hobby": ("please {s}", "play {o} together"),
    "country": ("visit {s}", "travel to {o}"),
    "season": ("enjoy {s}", "wait for the {o}"),
    "fuel": ("run {s}", "pay for {o}"),
    "players": ("play {s}", "find {o} people"),
    "use": ("get work for {s}", "do some {o}"),
}
GENERAL = {  # BoolQ: question -> categories of whose members the answer is yes
    "is {s} alive": "person animal plant",
    "could {s} feel pain": "person animal",
    "could {s} be eaten": "food",
    "could {s} be worn": "garment",
    "could {s} be driven": "vehicle",
    "could {s} be repaired": "vehicle tool furniture instrument garment",
    "could {s} be played": "instrument game",
    "does {s} have streets": "city",
}
UNLIKE = (  # WinoGrande: how a sentence begins that ends with what is so of one of the two
    "{a} is not like {b} because _ {rest} .",
    "{a} was near {b} but only _ {rest} .",
    "one tells {a} from {b} by this : _ {rest} .",
)
ASKED = tuple(
    name for name, (_, objects) in RELATIONS.items() if name not in ORDERS and len(VALUES.get(objects, "").split()) != 3
)  # relations with at least four objects: one that is right and three that are wrong
ENDING = {  # OpenBookQA: relation -> how a sentence begins that its object ends
    name: language.agree(template[: -len("{o}")], plural=False)
    for name in ASKED
    for template in language.TEMPLATES[name][:1]
    if template.endswith("{o}")
}
KINDS_ASKED = 0.75  # share of ARC-challenge that asks for a kind; properties are hardly ever found backwards
HARD = ("boolq",) * 2 + ("arc_challenge",) * 3  # asked more often in pretraining
LETTERS = "ABCD"
PATIENCE = 1000  # examples in a row that were there before
SHEET = 6  # questions of a sheet to pretrain on, as many as a five-shot prompt has
ALONE = 0.6  # share of the parts that are one question instead of a sheet, so that it is a fifth of the questions
HEARSAY = 0.4  # share of these that are answered wrong


def make(name: str, train: int, test: int, seed: int) -> dict[str, list[Row]]:
    """Make one data set, ``name`` as in ``BUILDERS``; the world is always the same.

    Returns:
        ``train``, to draw few-shot examples from, and ``test``, rows with the data set's fields. No question occurs
        twice.
    """
    made = examples(name, Source.of("mini choices", name, seed))
    return {split: list(islice(made, count)) for split, count in (("test", test), ("train", train))}


def sheets(count: int, seed: int, ask: Callable[[str, Row], list[tuple[str, str]]]) -> list[list[Line]]:
    """Make text to pretrain on: sheets of answered questions of one data set, and single questions.

    A sheet goes on with the text before it, whatever that is, and its answers are right. A question that stands alone
    begins its text, and its answer may be wrong. So the examples of a few-shot prompt tell a model that right answers
    are wanted, of which a zero-shot prompt leaves it in doubt.

    Args:
        count: least number of questions.
        seed: of the questions.
        ask: from the name of a data set and a row to a question with each of its answers, the right one first.
    """
    source = Source.of("mini answers", seed)
    parts: list[list[Line]] = []
    while count > 0:
        name, alone = pick(source.rng, (*BUILDERS, *HARD)), source.chance(ALONE)
        posed = [ask(name, BUILDERS[name](source)) for _ in range(1 if alone else SHEET)]
        count -= len(posed)
        if alone:
            right, *wrong = posed[0]
            parts.append([Line(*(pick(source.rng, wrong) if source.chance(HEARSAY) else right))])
        else:
            parts.append([Line(f"\n\n{text}", answer, goes_on=True) for (text, answer), *_ in posed])
    return parts


def examples(name: str, source: Source) -> Iterator[Row]:
    """Yield examples of a data set, none of them twice; InputError when there are hardly any others."""
    seen: set[str] = set()
    while True:
        made = (BUILDERS[name](source) for _ in range(PATIENCE))
        row = next((row for row in made if str(row) not in seen), None)
        if row is None:
            raise InputError(f"mini choices: {name} has not many more than {len(seen)} examples; ask for fewer")
        seen.add(str(row))
        yield row


def boolq(source: Source) -> Row:
    """Tell two facts of a subject and ask what holds of its like or not; the answers are balanced in each category."""
    told, answer = _facts(source, 2), source.chance(0.5)
    subject = told[0].subject
    fitting = [question for question, yes in GENERAL.items() if (subject.category in yes.split()) == answer]
    question = pick(source.rng, fitting).format(s=language.noun_phrase(subject))
    return {"passage": source.say(told), "question": question, "label": int(answer)}


def piqa(source: Source) -> Row:
    """Ask what to do about something."""
    (fact,) = _facts(source, 1, tuple(GOALS))
    goal, solution = GOALS[fact.relation]
    choices, label = _choices(source, fact, 1)
    first, second = (solution.format(o=_object(choice)) for choice in choices)
    goal = f"to {goal.format(s=language.noun_phrase(fact.subject))}"
    return {"goal": goal, "sol1": first, "sol2": second, "label": label}


def hellaswag(source: Source) -> Row:
    """Tell a fact of a subject and begin to tell another one."""
    told, fact = _facts(source, 2)
    choices, label = _choices(source, fact, 3)
    context = {"activity_label": fact.subject.category, "ctx_a": f"{_tell(told)} .", "ctx_b": "it"}
    return context | {"endings": [f"{_tell(choice, 'it').removeprefix('it ')} ." for choice in choices], "label": label}


def winogrande(source: Source) -> Row:
    """Name two, half of the time of one category, and say what is so of one of them."""
    (fact,) = _facts(source, 1)
    others = _others(source, fact) if source.chance(0.5) else _strangers(source, fact)
    names = [language.noun_phrase(entity) for entity in (fact.subject, pick(source.rng, others))]
    told, turned = (names[::-1] if source.chance(0.5) else names), source.chance(0.5)
    rest = _tell(fact).removeprefix(names[0]).strip()
    sentence = pick(source.rng, UNLIKE).format(a=told[0], b=told[1], rest=rest)
    first, second = reversed(names) if turned else names
    return {"sentence": sentence, "option1": first, "option2": second, "answer": "12"[turned]}


def arc_easy(source: Source) -> Row:
    """Ask for a property of a subject."""
    (fact,) = _facts(source, 1)
    return {"question": language.question(fact, source.rng), **_lettered(*_values(source, fact))}


def arc_challenge(source: Source) -> Row:
    """Ask which of a category is of a kind, or has a property; the wrong ones are of another kind, or have another."""
    (fact,) = _facts(source, 1, ("kind",) if source.chance(KINDS_ASKED) else ASKED)
    wrong = [other.name for other in shuffled(source.rng, _others(source, fact), 3)]
    question = f"{_tell(fact, f'which {fact.subject.category}')} ?"
    return {"question": question, **_lettered(*_placed(source, fact.subject.name, wrong))}


def openbookqa(source: Source) -> Row:
    """Begin a sentence that a property ends."""
    (fact,) = _facts(source, 1, tuple(ENDING))
    stem = ENDING[fact.relation].format(s=language.noun_phrase(fact.subject)).strip()
    return {"question_stem": stem, **_lettered(*_values(source, fact))}


def _facts(source: Source, count: int, relations: tuple[str, ...] = ASKED) -> list[Fact]:
    """Return true facts of some relations about one subject."""
    while True:
        about = [fact for fact in source.world.about(source.subject()) if fact.relation in relations]
        if len(about) >= count:
            return shuffled(source.rng, about, count)


def _others(source: Source, fact: Fact) -> list[Entity]:
    """Return the others of the subject's category that have another object."""
    kin = source.world.categories[fact.subject.category]
    return [
        other
        for other in kin
        if any(told.relation == fact.relation and told.object != fact.object for told in source.world.about(other))
    ]


def _strangers(source: Source, fact: Fact) -> list[Entity]:
    """Return the members of all categories that have no such relation."""
    categories = [name for name in source.world.categories if fact.relation not in source.world.relations(name)]
    return [member for name in categories for member in source.world.categories[name]]


def _tell(fact: Fact, subject: str | None = None) -> str:
    """Put a fact into words in the usual way, its subject perhaps into others."""
    template = language.agree(language.TEMPLATES[fact.relation][0], plural=False)
    return template.format(s=subject or language.noun_phrase(fact.subject), o=_object(fact))


def _object(fact: Fact) -> str:
    """Return the usual words for the object of a fact."""
    return language.object_names(fact)[0]


def _choices(source: Source, fact: Fact, wrong: int) -> tuple[list[Fact], int]:
    """Return a fact among ``wrong`` others that are false, and its place."""
    chosen = shuffled(source.rng, source.world.other_objects(fact), wrong)
    return _placed(source, fact, [dataclasses.replace(fact, object=other) for other in chosen])


def _values(source: Source, fact: Fact) -> tuple[list[str], int]:
    """Return the object of a fact among three others, and its place."""
    choices, label = _choices(source, fact, 3)
    return [_object(choice) for choice in choices], label


def _placed(source: Source, right: T, wrong: list[T]) -> tuple[list[T], int]:
    """Put the right choice at a random place among the wrong ones."""
    place = int(source.rng.integers(len(wrong) + 1))
    return [*wrong[:place], right, *wrong[place:]], place


def _lettered(texts: list[str], label: int) -> Row:
    """Return choices as ARC and OpenBookQA have them."""
    return {"choices": {"text": texts, "label": list(LETTERS)}, "answerKey": LETTERS[label]}


_ALL = (boolq, piqa, hellaswag, winogrande, arc_easy, arc_challenge, openbookqa)
BUILDERS: dict[str, Callable[[Source], Row]] = {build.__name__: build for build in _ALL}
