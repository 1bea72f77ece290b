"""Read YAML and check it against its settings class; all errors come together, each with file, key and value."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from flexround.errors import SettingsError, suggest

S = TypeVar("S", bound=BaseModel)
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")  # a number in YAML 1.2; YAML 1.1 requires a point and a sign


class _Loader(yaml.CSafeLoader):
    """Safe loader that refuses a repeated key instead of keeping its last value, and reads 1e-3 as a number."""

    yaml_implicit_resolvers = yaml.CSafeLoader.yaml_implicit_resolvers | {
        first: [*yaml.CSafeLoader.yaml_implicit_resolvers.get(first, []), ("tag:yaml.org,2002:float", EXPONENT)]
        for first in "-+0123456789"
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if not key.tag.endswith(":merge")]
        twice = [key for place, key in enumerate(keys) if key in keys[:place]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key given twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read one YAML file: safe tags only, no repeated keys.

    Raises:
        SettingsError: a missing file, or a syntax error with its line.
    """
    try:
        return parsed(path.read_text("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a day that isn't in the calendar
        raise SettingsError(f"{path}: {error}") from error


def load(model: type[S], path: Path) -> S:
    """Read a YAML file and validate it as :func:`given` does."""
    return given(model, read_yaml(path), str(path))


def parsed(text: str) -> Any:
    """Return the values of a YAML text; raise YAMLError for a syntax error."""
    return yaml.load(text, _Loader)


def given(model: type[S], value: Any, where: str) -> S:
    """Validate YAML values as :func:`validate`, but "5" and true are no numbers, 5 is no text, a date is text."""
    with _told(model, where):
        return model.model_validate_json(json.dumps(value, default=str), strict=True)


def validate(model: type[S], value: Any, where: str) -> S:
    """Validate ``value``; all errors are reported together, each with file, key and value.

    Raises:
        SettingsError: one line per error; the error for an unknown key suggests the nearest known key.
    """
    with _told(model, where):
        return model.model_validate(value)


def wrong_parts(model: type[BaseModel], values: Mapping[str, Any]) -> list[str]:
    """Return the errors of a partial mapping, validated as by ``given``; its other keys may be elsewhere."""
    try:
        model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        return [_line(model, item, "") for item in error.errors() if item["loc"] and item["loc"][0] in values]
    return []


@contextlib.contextmanager
def _told(model: type[BaseModel], where: str) -> Iterator[None]:
    """Turn a ValidationError in the block into a SettingsError."""
    try:
        yield
    except ValidationError as error:
        raise SettingsError("\n".join(_line(model, item, where) for item in error.errors())) from error


@contextlib.contextmanager
def noted(errors: list[str], where: str = "") -> Iterator[None]:
    """Append the lines of a SettingsError in the block to ``errors``, each prefixed with ``where``."""
    try:
        yield
    except SettingsError as error:
        errors += [f"{where}{line}" for line in str(error).splitlines()]


def _line(model: type[BaseModel], item: Any, where: str) -> str:
    """Return one of pydantic's errors as a line."""
    parts = [str(part) for part in item["loc"] if str(part).strip()]
    if parts[-1:] == ["[key]"]:  # the error is about a key of a mapping
        parts = parts[:-2]
    place = ": ".join(filter(None, (where, ".".join(parts))))
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown key {suggest(parts[-1], _fields_at(model, item['loc'][:-1]))}"
    if item["type"] == "missing":
        return f"{place}: this key is required and missing"
    if item["type"] == "value_error":  # from the project's own validators
        message = item["msg"].removeprefix("Value error, ")
        if not isinstance(item["input"], str):  # the message names the keys
            return f"{place}: {message}"
        separator = ": " if item["loc"][-1] == "[key]" else " = "
        return f"{place}{separator}{item['input']!r}: {message}"
    return f"{place} = {item['input']!r}: {item['msg']}"


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the valid field names at ``loc`` inside ``model``, as far as annotations tell."""
    for part in map(str, loc):
        if field := model.model_fields.get(part):
            model = _inner_model(field.annotation) or model
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class inside an annotation such as ``tuple[Row, ...]`` or ``Model | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _inner_model(argument):
            return found
    return None
