"""The seven multiple-choice data sets of the mini scale, in the fields of the original ones.

BoolQ and WinoGrande are answered by reading, the others by knowing the world, of which the mini models have read in
their pretraining. The right choice is at a random place; wrong ones are of the same relation, or contradict it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from numpy.random import PCG64, Generator

from flexround.errors import InputError, suggest
from flexround.mini import language
from flexround.mini.glue_pairs import Source
from flexround.mini.world import ORDERS, RELATIONS, VALUES, Fact, World, pick
from flexround.seeding import derive

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
COMPARED = {  # WinoGrande: relation -> what follows for the subject, what follows for the object
    "heavier": (("weighs more", "is harder to lift"), ("weighs less", "is easier to lift")),
    "older": (("came first", "has seen more"), ("came later", "has seen less")),
}
ASKED = tuple(
    name for name, (_, objects) in RELATIONS.items() if name not in ORDERS and len(VALUES.get(objects, "").split()) != 3
)  # relations with at least four objects: one that is right and three that are wrong
ENDING = {  # OpenBookQA: relation -> how a sentence begins that its object ends
    name: language.agree(template[: -len("{o}")], plural=False)
    for name in ASKED
    for template in language.TEMPLATES[name][:1]
    if template.endswith("{o}")
}
LETTERS = "ABCD"
PATIENCE = 1000  # examples in a row that were there before
JOINED = 6  # most examples of a line that a mini model is pretrained on, as many as a five-shot prompt has


def make(name: str, train: int, test: int, seed: int) -> dict[str, list[Row]]:
    """Make one data set.

    Args:
        name: as in ``BUILDERS``.
        train: examples to draw few-shot examples from.
        test: questions to evaluate on.
        seed: of the questions; the world is always the same.

    Returns:
        ``train`` and ``test``, rows with the data set's fields. No question occurs twice.

    Raises:
        InputError: no such data set.
    """
    if name not in BUILDERS:
        raise InputError(f"mini choices: data set {suggest(name, BUILDERS)}")
    made = examples(name, _source("mini choices", name, seed))
    return {split: list(islice(made, count)) for split, count in (("test", test), ("train", train))}


def lines(count: int, seed: int, ask: Callable[[str, Row], tuple[str, str]]) -> list[tuple[str, str]]:
    """Make text to pretrain on: one to ``JOINED`` answered questions of one data set, as they are asked.

    Args:
        count: of the lines.
        seed: of the questions.
        ask: from the name of a data set and a row to a question and its answer.

    Returns:
        Texts up to the last answer, and that answer.
    """
    source = _source("mini answers", seed)
    found = []
    for _ in range(count):
        name, joined = pick(source.rng, tuple(BUILDERS)), 1 + int(source.rng.integers(JOINED))
        *before, (query, answer) = (ask(name, BUILDERS[name](source)) for _ in range(joined))
        found.append(("".join(f"{first}{second}\n\n" for first, second in before) + query, answer))
    return found


def examples(name: str, source: Source) -> Iterator[Row]:
    """Yield examples of a data set, none of them twice.

    Raises:
        InputError: there are hardly any others.
    """
    seen: set[str] = set()
    while True:
        made = (BUILDERS[name](source) for _ in range(PATIENCE))
        row = next((row for row in made if str(row) not in seen), None)
        if row is None:
            raise InputError(f"mini choices: {name} has not many more than {len(seen)} examples; ask for fewer")
        seen.add(str(row))
        yield row


def boolq(source: Source) -> Row:
    """Tell two facts and ask whether the first, or its contrary, is so."""
    told = _facts(source, 2)
    answer = source.chance(0.5)
    claim = told[0] if answer else source.world.contrary(told[0], source.rng)
    return {"passage": source.say(told), "question": f"is it so that {_tell(claim)}", "answer": answer}


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
    """Compare two subjects, truly or not; what follows is so of one of them."""
    relation = pick(source.rng, ORDERS)
    category = pick(source.rng, RELATIONS[relation][0].split())
    fact = source.world.imagine(pick(source.rng, source.world.categories[category]), relation, source.rng)
    names = [language.noun_phrase(entity) for entity in (fact.subject, fact.object)]
    of, turned = int(source.rng.integers(2)), source.chance(0.5)
    sentence = f"{_tell(fact)} , so _ {pick(source.rng, COMPARED[fact.relation][of])} ."
    first, second = reversed(names) if turned else names
    return {"sentence": sentence, "option1": first, "option2": second, "answer": "12"[of ^ turned]}


def arc_easy(source: Source) -> Row:
    """Ask for a property of a subject."""
    (fact,) = _facts(source, 1)
    return {"question": language.question(fact, source.rng), **_lettered(*_values(source, fact))}


def arc_challenge(source: Source) -> Row:
    """Ask for the subject of a property; the wrong subjects have another one."""
    (fact,) = _facts(source, 1)
    category = fact.subject.category
    others = [f.subject for f in source.world.facts if f.relation == fact.relation and f.object != fact.object]
    kin = [entity for entity in others if entity.category == category]
    wrong = [kin[index].name for index in source.rng.permutation(len(kin))[:3]]
    question = f"{_tell(fact, f'which {category}')} ?"
    return {"question": question, **_lettered(*_placed(source, fact.subject.name, wrong))}


def openbookqa(source: Source) -> Row:
    """Begin a sentence that a property ends."""
    (fact,) = _facts(source, 1, tuple(ENDING))
    stem = ENDING[fact.relation].format(s=language.noun_phrase(fact.subject)).strip()
    return {"question_stem": stem, **_lettered(*_values(source, fact))}


def _source(*purpose: object) -> Source:
    """Return a source of all subjects."""
    world = World()
    return Source(world, Generator(PCG64(derive(*purpose))), tuple(world.categories))


def _facts(source: Source, count: int, relations: tuple[str, ...] = ASKED) -> list[Fact]:
    """Return true facts of some relations about one subject."""
    while True:
        about = [fact for fact in source.world.about(source.subject()) if fact.relation in relations]
        if len(about) >= count:
            return [about[index] for index in source.rng.permutation(len(about))[:count]]


def _tell(fact: Fact, subject: str | None = None) -> str:
    """Put a fact into words in the usual way, its subject perhaps into others."""
    template = language.agree(language.TEMPLATES[fact.relation][0], plural=False)
    return template.format(s=subject or language.noun_phrase(fact.subject), o=_object(fact))


def _object(fact: Fact) -> str:
    """Return the usual words for the object of a fact."""
    return language.object_names(fact)[0]


def _choices(source: Source, fact: Fact, wrong: int) -> tuple[list[Fact], int]:
    """Return a fact among ``wrong`` others that are false, and its place."""
    others = [other for other in source.world.objects(fact.subject, fact.relation) if other != fact.object]
    chosen = [others[index] for index in source.rng.permutation(len(others))[:wrong]]
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


BUILDERS: dict[str, Callable[[Source], Row]] = {
    "boolq": boolq,
    "piqa": piqa,
    "hellaswag": hellaswag,
    "winogrande": winogrande,
    "arc_easy": arc_easy,
    "arc_challenge": arc_challenge,
    "openbookqa": openbookqa,
}
