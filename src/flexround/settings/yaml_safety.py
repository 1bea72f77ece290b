"""What a settings file may hold at all: text, numbers, lists and mappings, not too deep and without end."""

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from flexround.errors import SettingsError

DEEPEST = 50  # the shipped files have 9
MOST = 1_000_000  # values, an alias counted as what it stands for
LARGEST = 1e15  # exact in float64, and above every count and size that a setting can mean
AMBIGUOUS = re.compile(  # octal, or to the base 60, in YAML 1.1 alone
    r"[-+]?(0[0-7_]+|[1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)"
)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")  # but tab and line feed


def check_structure(text: str) -> None:
    """Check YAML before it is built: what builds it crashes on deep nesting, and follows aliases without end.

    Raises:
        SettingsError: nested too deep, an alias inside what it stands for, too many values, or 0640 and 1:30.
        yaml.YAMLError: a syntax error.
    """
    sizes: dict[str, int] = {}  # of what anchors stand for
    inside: list[tuple[str | None, int]] = []  # anchors of the open mappings and lists, and their sizes so far
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        anchor: str | None = getattr(event, "anchor", None)
        where, size = f"line {event.start_mark.line + 1 if event.start_mark else 0}", 1
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((anchor, 1))
            if len(inside) > DEEPEST:
                raise SettingsError(f"{where}: nested more than {DEEPEST} deep; no setting is")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inside.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == opened for opened, _ in inside):
                raise SettingsError(f"{where}: *{anchor} stands inside &{anchor}; write out what is meant")
            size = sizes.get(str(anchor), 1)
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        elif event.implicit[0] and AMBIGUOUS.fullmatch(event.value):
            raise SettingsError(f"{where}: {event.value}: YAML 1.1 and 1.2 differ; write a decimal number, or quotes")
        if size > MOST:
            raise SettingsError(f"{where}: more than {MOST} values, aliases counted; write less")
        if anchor is not None:
            sizes[anchor] = size
        if inside:
            opened, before = inside.pop()
            inside.append((opened, before + size))


def wrong(value: Any, place: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a line for each number that isn't finite or far too large, text with control characters, or other kind."""
    where = f"{'.'.join(place) or 'the file'} = {str(value)[:60]!r}"
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str | int) or isinstance(key, bool) or CONTROL.search(str(key)):
                yield f"{'.'.join((*place, str(key)))!r}: not a name; write it in quotes"
            else:
                yield from wrong(inner, (*place, str(key)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from wrong(inner, (*place, str(number)))
    elif isinstance(value, str):
        if found := CONTROL.search(value):
            yield f"{where}: has the character {found[0]!r}, which tables and CSV can't hold; leave it out"
    elif isinstance(value, bool) or value is None:
        pass
    elif not isinstance(value, int | float):
        yield f"{where}: YAML takes it for a {type(value).__name__}; write it in quotes"
    elif not math.isfinite(value) or abs(value) > LARGEST:
        yield f"{'.'.join(place)} = {value:.6g}: give a finite number, at most {LARGEST:g}"
