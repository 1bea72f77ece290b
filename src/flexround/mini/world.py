"""The offline world of text: typed entities, relations between them, and facts drawn once from a seed.

Every text task of the mini scale is made from here. ``World.facts`` is what is true; tasks that must not be solvable
from memory draw other facts of the same shape with ``World.imagine``.

The same bytes on every machine: PCG64 integers and uniforms, no sets in the order of anything.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeVar

from numpy.random import PCG64, Generator

T = TypeVar("T")

# category -> kind -> members. Nouns are regular; no kind or value that follows "a" begins with a vowel.
ENTITIES = {
    "person": {
        "doctor": "anna bruno clara david elena",
        "teacher": "felix greta hugo irene jonas",
        "farmer": "karla leon maria nils olga",
        "baker": "peter rosa simon tessa viktor",
    },
    "city": {
        "port": "lorvik marden selby tarno ostia",
        "capital": "brenda corvan dalmor elyse fenwick",
        "resort": "galen hestia ivanto jorvik kelso",
        "fortress": "norden palmyra quarto rendal sturm",
    },
    "animal": {
        "bird": "falcon heron sparrow owl crow",
        "fish": "shark eel herring minnow tuna",
        "bug": "beetle moth cricket wasp spider",
        "beast": "otter badger tiger rabbit camel",
    },
    "food": {
        "fruit": "apple pear plum lemon melon",
        "vegetable": "carrot onion turnip pepper bean",
        "dessert": "cake pudding biscuit tart waffle",
        "meal": "soup stew pizza burger noodle",
    },
    "plant": {
        "tree": "oak maple birch cedar willow",
        "flower": "rose tulip orchid violet dahlia",
        "shrub": "hazel juniper bramble laurel fern",
    },
    "vehicle": {
        "boat": "canoe kayak raft yacht barge",
        "car": "sedan taxi jeep van limousine",
        "plane": "glider jet airliner helicopter balloon",
        "cart": "wagon carriage sledge tractor trailer",
    },
    "tool": {
        "blade": "saw axe razor chisel scalpel",
        "digger": "spade hoe pickaxe rake trowel",
        "gauge": "ruler compass scale thermometer clock",
        "fixer": "hammer wrench screwdriver drill clamp",
    },
    "furniture": {
        "seat": "chair sofa stool bench armchair",
        "bed": "cot hammock bunk mattress cradle",
        "cabinet": "cupboard wardrobe drawer dresser bookcase",
    },
    "instrument": {
        "fiddle": "violin cello guitar harp banjo",
        "horn": "trumpet trombone tuba bugle flute",
        "drum": "bongo gong cymbal tambourine bell",
        "keyboard": "piano organ accordion harpsichord synthesizer",
    },
    "garment": {
        "hat": "cap bonnet beret helmet turban",
        "shoe": "boot sandal slipper sneaker clog",
        "coat": "jacket cloak parka raincoat blazer",
        "dress": "gown skirt tunic robe kimono",
    },
    "game": {
        "sport": "tennis hockey rugby golf polo",
        "pastime": "chess backgammon poker bingo bridge",
        "dance": "waltz tango samba ballet polka",
    },
}
VALUES = {
    "colour": "red blue green yellow brown grey white black purple",
    "size": "small medium large",
    "material": "wood steel glass leather wool stone plastic copper",
    "habitat": "forest river desert mountain meadow swamp lake valley",
    "diet": "seeds leaves worms berries roots nuts mice eggs",
    "taste": "sweet sour bitter salty spicy mild",
    "country": "avaria belmora castana dorland estara feronia gothia",
    "price": "cheap costly free moderate",
    "season": "spring summer autumn winter",
    "room": "kitchen garage attic cellar bedroom hall library studio",
    "workplace": "school hospital office bank market harbour theatre farm",
    "climate": "windy rainy sunny foggy snowy dry",
    "medium": "roads rails water ice sand",
    "fuel": "petrol electricity steam wind coal",
    "use": "cutting digging measuring painting cleaning repairs",
    "tone": "loud soft deep bright warm",
    "players": "two four six eight ten",
    "remedy": "fever cough headache burns cramp",
}
# relation -> categories of its subject, category of its object ("" is the subject's own).
RELATIONS = {
    "colour": ("animal food plant vehicle furniture garment", "colour"),
    "size": ("animal plant city furniture vehicle", "size"),
    "material": ("tool vehicle furniture instrument garment", "material"),
    "habitat": ("animal plant", "habitat"),
    "diet": ("animal", "diet"),
    "taste": ("food", "taste"),
    "origin": ("food plant instrument game", "country"),
    "price": ("food vehicle tool furniture garment", "price"),
    "season": ("food plant garment game", "season"),
    "room": ("tool furniture instrument", "room"),
    "inventor": ("vehicle tool instrument game", "person"),
    "birthplace": ("person", "city"),
    "workplace": ("person", "workplace"),
    "hobby": ("person", "game"),
    "pet": ("person", "animal"),
    "favourite": ("person", "food"),
    "country": ("city", "country"),
    "climate": ("city", "climate"),
    "product": ("city", "food"),
    "mayor": ("city", "person"),
    "medium": ("vehicle", "medium"),
    "fuel": ("vehicle", "fuel"),
    "use": ("tool", "use"),
    "tone": ("instrument", "tone"),
    "players": ("game", "players"),
    "remedy": ("plant", "remedy"),
    "heavier": ("animal food vehicle tool furniture instrument", ""),
    "older": ("person city game", ""),
}
ORDERS = ("heavier", "older")  # asymmetric and open to many objects; every other relation has one object per subject
TYPICAL = 0.6  # share of the facts in which a subject has what is typical of its kind


@dataclasses.dataclass(frozen=True)
class Entity:
    """Whatever a fact can be about: a thing of a category and kind, or a plain value, whose kind is empty."""

    name: str
    category: str
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Fact:
    """A triple: what ``relation`` the ``subject`` has to the ``object``."""

    subject: Entity
    relation: str
    object: Entity


class World:
    """All entities and what is true of them.

    Attributes:
        categories: the subjects, category -> entities.
        facts: by category: each relation's facts, one for each entity (a chain for the relations of ``ORDERS``), then
            each entity's kind as the relation ``kind``.
    """

    def __init__(self) -> None:
        self.categories = {
            category: tuple(Entity(name, category, kind) for kind, names in kinds.items() for name in names.split())
            for category, kinds in ENTITIES.items()
        }
        values = {name: tuple(Entity(value, name) for value in words.split()) for name, words in VALUES.items()}
        self._members = self.categories | values
        self.facts = tuple(self._truths(Generator(PCG64(0))))
        self._about = {
            subject: tuple(fact for fact in self.facts if fact.subject == subject)
            for entities in self.categories.values()
            for subject in entities
        }

    def relations(self, category: str) -> tuple[str, ...]:
        """Return the relations that the entities of a category have, without ``kind``."""
        return tuple(name for name, (subjects, _) in RELATIONS.items() if category in subjects.split())

    def objects(self, subject: Entity, relation: str) -> tuple[Entity, ...]:
        """Return all objects that a fact about ``subject`` may have."""
        members = self._members[RELATIONS[relation][1] or subject.category]
        return tuple(member for member in members if member != subject)

    def about(self, subject: Entity) -> tuple[Fact, ...]:
        """Return what is true of a subject, its kind last."""
        return self._about[subject]

    def imagine(self, subject: Entity, relation: str, rng: Generator) -> Fact:
        """Return a possible fact, true or not; every object is equally likely."""
        return Fact(subject, relation, pick(rng, self.objects(subject, relation)))

    def contrary(self, fact: Fact, rng: Generator) -> Fact:
        """Return a fact that cannot hold together with ``fact``; the contraries of a relation are equally likely."""
        if fact.relation in ORDERS:
            return Fact(fact.object, fact.relation, fact.subject)
        return self.imagine_other(fact, rng)

    def imagine_other(self, fact: Fact, rng: Generator) -> Fact:
        """Return ``fact`` with another object."""
        others = [other for other in self.objects(fact.subject, fact.relation) if other != fact.object]
        return dataclasses.replace(fact, object=pick(rng, others))

    def _truths(self, rng: Generator) -> list[Fact]:
        facts = []
        for category, entities in self.categories.items():
            for relation in self.relations(category):
                draw = self._draw_order if relation in ORDERS else self._draw_values
                facts += draw(entities, relation, rng)
            facts += [Fact(entity, "kind", kind_of(entity)) for entity in entities]
        return facts

    def _draw_values(self, entities: Sequence[Entity], relation: str, rng: Generator) -> list[Fact]:
        typical = {entity.kind: pick(rng, self.objects(entity, relation)) for entity in entities}
        return [
            Fact(entity, relation, typical[entity.kind])
            if rng.random() < TYPICAL
            else self.imagine(entity, relation, rng)
            for entity in entities
        ]

    def _draw_order(self, entities: Sequence[Entity], relation: str, rng: Generator) -> list[Fact]:
        return [Fact(high, relation, low) for high, low in itertools.pairwise(shuffled(rng, entities))]


def kind_of(entity: Entity) -> Entity:
    """Return the kind of an entity as an entity, of the category ``kind``: the bird for the falcon."""
    return Entity(entity.kind, "kind")


def pick(rng: Generator, items: Sequence[T]) -> T:
    """Return one of ``items``, all equally likely."""
    return items[int(rng.integers(len(items)))]


def shuffled(rng: Generator, items: Sequence[T], count: int | None = None) -> list[T]:
    """Return ``count`` of ``items``, or all, in random order."""
    return [items[index] for index in rng.permutation(len(items))[:count]]
