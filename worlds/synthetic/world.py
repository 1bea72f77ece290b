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

# Category, kind and members. Nouns are regular; no kind or value that follows "a" begins with a vowel.
ENTITIES = """
    person     doctor    anna bruno clara david elena
    person     teacher   felix greta hugo irene jonas
    person     farmer    karla leon maria nils olga
    person     baker     peter rosa simon tessa viktor
    city       port      lorvik marden selby tarno ostia
    city       capital   brenda corvan dalmor elyse fenwick
    city       resort    galen hestia ivanto jorvik kelso
    city       fortress  norden palmyra quarto rendal sturm
    animal     bird      falcon heron sparrow owl crow
    animal     fish      shark eel herring minnow tuna
    animal     bug       beetle moth cricket wasp spider
    animal     beast     otter badger tiger rabbit camel
    food       fruit     apple pear plum lemon melon
    food       vegetable carrot onion turnip pepper bean
    food       dessert   cake pudding biscuit tart waffle
    food       meal      soup stew pizza burger noodle
    plant      tree      oak maple birch cedar willow
    plant      flower    rose tulip orchid violet dahlia
    plant      shrub     hazel juniper bramble laurel fern
    vehicle    boat      canoe kayak raft yacht barge
    vehicle    car       sedan taxi jeep van limousine
    vehicle    plane     glider jet airliner helicopter balloon
    vehicle    cart      wagon carriage sledge tractor trailer
    tool       blade     saw axe razor chisel scalpel
    tool       digger    spade hoe pickaxe rake trowel
    tool       gauge     ruler compass scale thermometer clock
    tool       fixer     hammer wrench screwdriver drill clamp
    furniture  seat      chair sofa stool bench armchair
    furniture  bed       cot hammock bunk mattress cradle
    furniture  cabinet   cupboard wardrobe drawer dresser bookcase
    instrument fiddle    violin cello guitar harp banjo
    instrument horn      trumpet trombone tuba bugle flute
    instrument drum      bongo gong cymbal tambourine bell
    instrument keyboard  piano organ accordion harpsichord synthesizer
    garment    hat       cap bonnet beret helmet turban
    garment    shoe      boot sandal slipper sneaker clog
    garment    coat      jacket cloak parka raincoat blazer
    garment    dress     gown skirt tunic robe kimono
    game       sport     tennis hockey rugby golf polo
    game       pastime   chess backgammon poker bingo bridge
    game       dance     waltz tango samba ballet polka
"""
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
        rows = [line.split() for line in ENTITIES.strip().splitlines()]
        entities = [Entity(name, category, kind) for category, kind, *names in rows for name in names]
        self.categories = {row[0]: tuple(entity for entity in entities if entity.category == row[0]) for row in rows}
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
        return dataclasses.replace(fact, object=pick(rng, self.other_objects(fact)))

    def other_objects(self, fact: Fact) -> list[Entity]:
        """Return the objects that ``fact`` may have instead of its own."""
        return [other for other in self.objects(fact.subject, fact.relation) if other != fact.object]

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
