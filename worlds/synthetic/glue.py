"""The eight GLUE tasks of the mini scale, in GLUE's columns, label ids and splits.

A few per cent of the labels are wrong in both splits (``Task.noise``), as annotators are, so that the tasks do not
saturate. No example occurs twice, in one split or in two.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from numpy.random import Generator

from synthetic import glue_pairs, language
from synthetic.glue_pairs import PLAIN, Source
from synthetic.world import RELATIONS, pick

Rows = list[dict[str, Any]]
MATCHED = ("person", "animal", "food", "plant", "tool", "game")
MISMATCHED = ("city", "vehicle", "furniture", "instrument", "garment")
STSB_NOISE = 0.6  # largest error of a similarity, in points


@dataclasses.dataclass(frozen=True)
class Task:
    """One classification task."""

    columns: tuple[str, ...]
    build: Callable[[Source, int], tuple[str, ...]]  # from a label to the texts
    balance: tuple[float, ...]  # share of each label
    noise: float  # share of the examples whose label is replaced by another one


def cola(source: Source, label: int) -> tuple[str]:
    """Return a sentence that is acceptable (1), or not (0) for its verb's number or its word order."""
    plural = source.chance(0.5)
    common = dataclasses.replace(source, categories=tuple(c for c in source.categories if c not in language.PROPER))
    fact = source.facts(common.subject(), 1)[0]
    flip = not label and source.chance(0.5)
    near = common.subject(unlike=fact.subject)
    subject = language.noun_phrase(fact.subject, plural)
    if source.chance(0.3):
        place = pick(source.rng, ("near", "behind", "beside", "opposite"))
        subject += f" {place} {language.noun_phrase(near, source.chance(0.5))}"
    words = f"{subject} {language.predicate(fact, source.rng, plural != flip)} .".split()
    if not label and not flip:
        words = disorder(words, source.rng)
    return (" ".join(words),)


def disorder(words: list[str], rng: Generator) -> list[str]:
    """Move one word of a sentence at least two places, so that the sentence changes; the full stop stays."""
    *rest, stop = words
    while True:
        start, end = (int(place) for place in rng.integers(len(rest), size=2))
        moved = rest[:start] + rest[start + 1 :]
        moved.insert(end, rest[start])
        if abs(start - end) > 1 and moved != rest:
            return [*moved, stop]


def sst2(source: Source, label: int) -> tuple[str]:
    """Return an opinion, good (1) or bad (0)."""
    person = pick(source.rng, source.world.categories["person"])
    return (language.opinion(source.subject(), person, bool(label), source.rng) + " .",)


PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": Task(("sentence",), cola, (0.3, 0.7), 0.03),
    "sst2": Task(("sentence",), sst2, (0.45, 0.55), 0.05),
    "mrpc": Task(PAIR, glue_pairs.mrpc, (0.33, 0.67), 0.04),
    "qqp": Task(("question1", "question2"), glue_pairs.qqp, (0.63, 0.37), 0.04),
    "mnli": Task(("premise", "hypothesis"), glue_pairs.mnli, (1 / 3, 1 / 3, 1 / 3), 0.05),
    "qnli": Task(("question", "sentence"), glue_pairs.qnli, (0.5, 0.5), 0.04),
    "rte": Task(PAIR, glue_pairs.rte, (0.5, 0.5), 0.05),
}
NAMES = (*TASKS, "stsb")


def make(name: str, train: int, validation: int, seed: int) -> dict[str, Rows]:
    """Make one task, ``name`` as in the Hugging Face data set ``glue``; the world is always the same.

    Returns:
        split -> rows with the task's columns, ``label`` and ``idx``. The splits are ``train`` and ``validation``, for
        MNLI ``validation_matched`` from the categories of ``train`` and ``validation_mismatched`` from others.
    """
    source = Source.of("mini glue", name, seed)
    splits = {"train": source.categories, "validation": source.categories}
    if name == "mnli":
        splits = {"train": MATCHED, "validation_matched": MATCHED, "validation_mismatched": MISMATCHED}
    relations = tuple(RELATIONS) if name in ("cola", "stsb") else PLAIN
    seen: set[tuple[str, ...]] = set()
    made: dict[str, Rows] = {}
    for split, categories in splits.items():
        fresh = examples(name, dataclasses.replace(source, categories=categories, relations=relations), seen)
        count = train if split == "train" else validation
        made[split] = [next(fresh) | {"idx": index} for index in range(count)]
    return made


def examples(name: str, source: Source, seen: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Yield examples whose texts are not in ``seen``, which grows."""
    if name == "stsb":
        yield from similar(source, seen)
    task = TASKS[name]
    while True:
        label = draw(source.rng, task.balance)
        while (texts := task.build(source, label)) in seen:  # the label stays, so that balance does
            pass
        seen.add(texts)
        if source.chance(task.noise):
            label = (label + 1 + int(source.rng.integers(len(task.balance) - 1))) % len(task.balance)
        yield dict(zip(task.columns, texts, strict=True)) | {"label": label}


def draw(rng: Generator, shares: tuple[float, ...]) -> int:
    """Return an index with the probability of its share."""
    return min(bisect.bisect(list(itertools.accumulate(shares)), rng.random()), len(shares) - 1)


def similar(source: Source, seen: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Yield pairs of sentences with their similarity and an annotator's error, in tenths of a point."""
    while True:
        texts, score = glue_pairs.stsb(source)
        error = STSB_NOISE * (source.rng.random() + source.rng.random() - 1.0)
        if texts not in seen:
            seen.add(texts)
            yield dict(zip(PAIR, texts, strict=True)) | {"label": round(min(5.0, max(0.0, score + error)), 1)}
