"""How the world is put into lower-case words: facts and questions by templates, synonyms, agreement, opinions.

In a template, ``{s}`` and ``{o}`` are the subject and the object, and ``lives|live`` is a verb that agrees with what
stands before it. Templates of one relation are paraphrases of each other, and so are its questions.
"""

import itertools
import re
from collections.abc import Sequence

from numpy.random import Generator

from synthetic.world import ORDERS, Entity, Fact, pick

JOINTS = ("and", "while", "also")
PROPER = ("person", "city", "game")  # named without "the", never plural
TEMPLATES = {
    "kind": ("{s} is|is a {o}", "{s} belongs|belong to the {o} family"),
    "colour": ("{s} is|are {o}", "{s} has|have a {o} colour", "the colour of {s} is|is {o}"),
    "size": ("{s} is|are {o} in size", "{s} has|have a {o} size", "the size of {s} is|is {o}"),
    "material": ("{s} is|are made of {o}", "{s} consists|consist of {o}", "{o} is|is the material of {s}"),
    "habitat": ("{s} lives|live in the {o}", "{s} inhabits|inhabit the {o}", "the {o} is|is the home of {s}"),
    "diet": ("{s} eats|eat {o}", "{s} feeds|feed on {o}", "the food of {s} is|is {o}"),
    "taste": ("{s} tastes|taste {o}", "{s} has|have a {o} taste", "the taste of {s} is|is {o}"),
    "origin": ("{s} comes|come from {o}", "{s} stems|stem from {o}", "{o} is|is the origin of {s}"),
    "price": ("{s} is|are {o} in price", "{s} has|have a {o} price", "the price of {s} is|is {o}"),
    "season": ("{s} appears|appear in {o}", "{s} returns|return every {o}", "{o} is|is the season of {s}"),
    "room": ("{s} stands|stand in the {o}", "{s} is|are kept in the {o}", "the {o} is|is the place of {s}"),
    "inventor": ("{s} was|were invented by {o}", "{o} invented {s}", "the inventor of {s} is|is {o}"),
    "birthplace": ("{s} was|were born in {o}", "{s} grew up in {o}", "{o} is|is the birthplace of {s}"),
    "workplace": ("{s} works|work at the {o}", "{s} has|have a job at the {o}", "the {o} employs|employ {s}"),
    "hobby": ("{s} plays|play {o}", "{s} practises|practise {o}", "the hobby of {s} is|is {o}"),
    "pet": ("{s} keeps|keep {o}", "{s} owns|own {o}", "the pets of {s} are|are {o}"),
    "favourite": ("{s} enjoys|enjoy {o}", "{s} is|are fond of {o}", "the favourite dishes of {s} are|are {o}"),
    "country": ("{s} lies|lie in {o}", "{s} is|are situated in {o}", "the country of {s} is|is {o}"),
    "climate": ("{s} is|are often {o}", "{s} has|have {o} weather", "the weather of {s} is|is {o}"),
    "product": ("{s} produces|produce {o}", "{s} exports|export {o}", "the main products of {s} are|are {o}"),
    "mayor": ("{s} is|are led by {o}", "{o} governs|govern {s}", "the mayor of {s} is|is {o}"),
    "medium": ("{s} travels|travel on {o}", "{s} moves|move on {o}", "the route of {s} is|is {o}"),
    "fuel": ("{s} runs|run on {o}", "{s} needs|need {o}", "{o} powers|power {s}"),
    "use": ("{s} is|are used for {o}", "{s} serves|serve for {o}", "the purpose of {s} is|is {o}"),
    "tone": ("{s} sounds|sound {o}", "{s} has|have a {o} tone", "the tone of {s} is|is {o}"),
    "players": ("{s} needs|need {o} players", "{s} is|are for {o} people", "{o} players take part in {s}"),
    "remedy": ("{s} helps|help against {o}", "{s} cures|cure {o}", "the remedy for {o} is|is {s}"),
    "heavier": ("{s} is|are heavier than {o}", "{s} weighs|weigh more than {o}", "{o} is|is lighter than {s}"),
    "older": ("{s} is|are older than {o}", "{s} predates|predate {o}", "{o} is|is younger than {s}"),
}
QUESTIONS = {
    "colour": ("what is the colour of {s}", "which colour does|do {s} have", "what does|do {s} look like"),
    "size": ("what is the size of {s}", "how big is|are {s}", "which size does|do {s} have"),
    "material": ("what is|are {s} made of", "what does|do {s} consist of", "what is the material of {s}"),
    "habitat": ("where does|do {s} live", "what is the home of {s}", "which place does|do {s} inhabit"),
    "diet": ("what does|do {s} eat", "what does|do {s} feed on", "what is the food of {s}"),
    "taste": ("how does|do {s} taste", "what is the taste of {s}", "which taste does|do {s} have"),
    "origin": ("where does|do {s} come from", "what is the origin of {s}", "which country does|do {s} stem from"),
    "price": ("how much does|do {s} cost", "what is the price of {s}", "which price does|do {s} have"),
    "season": ("when does|do {s} appear", "what is the season of {s}", "which season does|do {s} return in"),
    "room": ("where is|are {s} kept", "where does|do {s} stand", "what is the place of {s}"),
    "inventor": ("who invented {s}", "who is the inventor of {s}", "by whom was|were {s} invented"),
    "birthplace": ("where was|were {s} born", "what is the birthplace of {s}", "where did {s} grow up"),
    "workplace": ("where does|do {s} work", "who employs {s}", "where does|do {s} have a job"),
    "hobby": ("what does|do {s} play", "what is the hobby of {s}", "what does|do {s} practise"),
    "pet": ("what does|do {s} keep", "what are the pets of {s}", "which pets does|do {s} own"),
    "favourite": ("what does|do {s} enjoy", "what are the favourite dishes of {s}", "what is|are {s} fond of"),
    "country": ("where does|do {s} lie", "what is the country of {s}", "where is|are {s} situated"),
    "climate": ("what is the weather of {s}", "which weather does|do {s} have", "how is the climate of {s}"),
    "product": ("what does|do {s} produce", "what are the main products of {s}", "what does|do {s} export"),
    "mayor": ("who is the mayor of {s}", "who governs {s}", "by whom is|are {s} led"),
    "medium": ("what does|do {s} travel on", "what is the route of {s}", "what does|do {s} move on"),
    "fuel": ("what does|do {s} run on", "what powers {s}", "what does|do {s} need"),
    "use": ("what is|are {s} used for", "what is the purpose of {s}", "what does|do {s} serve for"),
    "tone": ("how does|do {s} sound", "what is the tone of {s}", "which tone does|do {s} have"),
    "players": ("how many players does|do {s} need", "how many people is|are {s} for"),
    "remedy": ("what does|do {s} help against", "what does|do {s} cure", "what is|are {s} the remedy for"),
}
SAME = """
    red/scarlet blue/navy yellow/golden grey/silver white/pale black/dark small/little medium/middling large/huge
    wood/timber wool/fleece stone/rock plastic/vinyl forest/woods river/stream mountain/peak meadow/pasture
    swamp/marsh valley/dale seeds/grain leaves/foliage worms/maggots sweet/sugary sour/tangy bitter/harsh spicy/hot
    mild/bland cheap/low costly/dear moderate/fair autumn/fall garage/shed attic/loft cellar/basement hall/corridor
    hospital/clinic market/bazaar harbour/docks rainy/wet windy/breezy sunny/bright foggy/misty dry/arid
    roads/streets petrol/gasoline electricity/current wind/breeze cutting/slicing cleaning/washing repairs/mending
    loud/noisy soft/gentle deep/hollow two/2 four/4 six/6 eight/8 ten/10 headache/migraine cramp/spasms
"""
SYNONYMS = dict(pair.split("/") for pair in SAME.split())
OPINIONS = {
    True: {
        "adjective": "superb wonderful brilliant charming delightful excellent splendid lovely pleasant clever",
        "noun": "triumph joy treat gem pleasure masterpiece success blessing",
        "verb": "loved adored praised admired cherished recommended",
    },
    False: {
        "adjective": "awful horrible tedious ugly dreadful terrible shabby nasty pathetic clumsy annoying stupid",
        "noun": "failure pain bore disaster nuisance blunder mess curse",
        "verb": "hated loathed mocked despised avoided rejected",
    },
}
DEGREES = ("very", "really", "quite", "truly", "rather")
# {a} {n} {v}: adjective, noun and verb of the wanted polarity; {x} {y} {z}: of the other; {t} thing, {p} person.
OPINION_TEMPLATES = (
    "{t} was {d} {a}",
    "{t} turned out to be a {n}",
    "{p} {v} {t}",
    "{p} found {t} {d} {a}",
    "the {a} {noun} was a {n} for {p}",
    "{p} {v} the {a} {noun}",
    "{t} was not {x}",
    "{t} was never a {y}",
    "{p} never {z} {t}",
    "{t} was far from {x}",
    "although {t} looked {x} , {p} {v} it",
    "{t} was {a} despite its {x} look",
    "{p} expected a {y} , but {t} was {a}",
)
USUAL = 0.6  # share of the wordings that are not varied
VERB = re.compile(r"(\w+)\|(\w+)")


def noun_phrase(entity: Entity, plural: bool = False) -> str:
    """Return the words that refer to an entity: ``lorvik``, ``the otters``, ``red``."""
    if not is_common(entity):
        return entity.name
    return f"the {pluralise(entity.name) if plural else entity.name}"


def is_common(entity: Entity) -> bool:
    """Return whether the entity is called by a countable noun, not by a name or a plain value."""
    return entity.category not in PROPER and (entity.category == "kind" or entity.kind != "")


def pluralise(noun: str) -> str:
    """Return the plural of a regular noun."""
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def choose(rng: Generator, paraphrases: Sequence[str]) -> str:
    """Return the usual wording, which is the first, or sometimes any of the wordings."""
    return paraphrases[0] if rng.random() < USUAL else pick(rng, paraphrases)


def object_names(fact: Fact) -> tuple[str, ...]:
    """Return all ways to name the object of a fact: a value and its synonym, the thing, or the things in general."""
    entity = fact.object
    if fact.relation in ORDERS:
        return (noun_phrase(entity),)
    if is_common(entity) and fact.relation != "kind":
        return (pluralise(entity.name),)
    return (entity.name, SYNONYMS[entity.name]) if entity.name in SYNONYMS else (entity.name,)


def agree(template: str, plural: bool) -> str:
    """Choose the form of each verb ``singular|plural`` of a template."""
    return VERB.sub(r"\2" if plural else r"\1", template)


def negate(template: str) -> str:
    """Return the negation of a template that has a verb ``singular|plural``."""
    return VERB.sub(
        lambda verb: f"{verb[0]} not" if verb[1] in ("is", "are", "was") else f"does|do not {verb[2]}", template
    )


def clause(fact: Fact, rng: Generator, plural: bool = False, negated: bool = False) -> str:
    """Put one fact, or its negation, into words by a random template; ``plural``: speak of all the subject's like."""
    templates = [template for template in TEMPLATES[fact.relation] if not negated or "|" in template]
    template = choose(rng, templates)
    return fill(negate(template) if negated else template, fact, rng, plural)


def predicate(fact: Fact, rng: Generator, plural: bool = False) -> str:
    """Put one fact into words without its subject: ``lives in the river``."""
    templates = [template[4:] for template in TEMPLATES[fact.relation] if template.startswith("{s} ")]
    return fill(choose(rng, templates), fact, rng, plural, subject_first=True)


def fill(template: str, fact: Fact, rng: Generator, plural: bool, subject_first: bool | None = None) -> str:
    """Fill in a template; only a verb that follows the subject agrees with it."""
    first = template.startswith("{s}") if subject_first is None else subject_first
    plural = plural and is_common(fact.subject)
    subject = noun_phrase(fact.subject, plural)
    return agree(template, plural and first).format(s=subject, o=choose(rng, object_names(fact)))


def statement(facts: Sequence[Fact], rng: Generator, plural: bool = False) -> str:
    """Join facts to one sentence without a full stop; neighbours about the same subject may share it."""
    words = last = clause(facts[0], rng, plural)
    for before, fact in itertools.pairwise(facts):
        # The subject can only be left out where the clause before began with it.
        shared = before.subject == fact.subject and last.startswith(noun_phrase(fact.subject, plural) + " ")
        if shared and rng.random() < 0.7:
            words += f" and {predicate(fact, rng, plural)}"
        else:
            last = clause(fact, rng, plural)
            words += f" , {pick(rng, JOINTS)} {last}"
    return words


def question(fact: Fact, rng: Generator, plural: bool = False) -> str:
    """Ask for the object of a fact, with a question mark."""
    return fill(choose(rng, QUESTIONS[fact.relation]), fact, rng, plural, subject_first=True) + " ?"


def opinion(thing: Entity, person: Entity, positive: bool, rng: Generator) -> str:
    """Speak well or badly of a thing, without a full stop."""
    own, other = OPINIONS[positive], OPINIONS[not positive]
    words = dict(zip("anvxyz", [pick(rng, words.split()) for words in (*own.values(), *other.values())], strict=True))
    names = {"t": noun_phrase(thing), "noun": thing.name, "p": person.name, "d": pick(rng, DEGREES)}
    return pick(rng, OPINION_TEMPLATES).format(**words, **names)
