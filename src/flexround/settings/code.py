"""Code that settings name, ``package.module:name``: is it there, does it take its options? Nothing is imported."""

import ast
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from flexround.errors import SettingsError, look_up, suggest


class Source(NamedTuple):
    """The top level of a module.

    Attributes:
        path: of the file.
        nodes: name -> what defines it.
        imported: name -> the module and the name there that it is imported from; ``*`` stands for any name.
    """

    path: Path
    nodes: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]


def check(target: str, options: Iterable[str] = (), first: int = 0) -> None:
    """Check that a function or class is there and takes the keyword arguments ``options``.

    Args:
        target: ``package.module:name``. An installed package is not looked into.
        options: names of keyword arguments.
        first: parameters that it is given by the suite, before them.

    Raises:
        SettingsError: no such module or name, a syntax error, or an argument that it doesn't take.
    """
    found = _find(target)
    known = _parameters(*found) if found is not None else None
    if known is not None and (wrong := [option for option in options if option not in known[first:]]):
        raise SettingsError("\n".join(f"{target}: unknown option {suggest(key, known[first:])}" for key in wrong))


def check_rounding(target: str, options: Iterable[str] = ()) -> None:
    """Check a rounding as :func:`check` does; it must be a class, made of weight, grid, axes and the options."""
    try:
        if (found := _find(target)) is not None and not isinstance(found[1], ast.ClassDef):
            raise SettingsError(f"{target!r}: is no class; name a subclass of Rounding")
        check(target, options, first=3)
    except SettingsError as error:
        raise SettingsError("\n".join(f"rounding {line}" for line in str(error).splitlines())) from error


def _find(target: str) -> tuple[Source, ast.stmt] | None:
    """Return what defines a name and the module of it; None if that can't be told without running it."""
    module, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SettingsError(f"{target!r}: write it as package.module:Name")
    path = _path(module)
    if path is None:
        raise SettingsError(f"{target!r}: no module {module!r} beside this file or on the Python path")
    if not _is_looked_into(path):
        return None
    source = _read(path)
    if not {name, "*", "__getattr__"} & {*source.nodes, *source.imported}:
        look_up(f"{target!r}: {path} has no", source.nodes, name)
    return _definition(source, name)


def _definition(source: Source, name: str) -> tuple[Source, ast.stmt] | None:
    """Follow a name of a module through imports to the function or class that it stands for."""
    if name in source.imported:
        module, name = source.imported[name]
        path = _path(module)
        return _definition(_read(path), name) if path is not None and _is_looked_into(path) else None
    node = source.nodes.get(name)
    return (source, node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None


def _parameters(source: Source, node: ast.stmt) -> list[str] | None:
    """Return the names of a function's parameters, or of a class's without ``self``; None if it takes any."""
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                known = _parameters(source, member)
                return known and known[1:]
        if len(node.bases) != 1 or node.decorator_list or not isinstance(node.bases[0], ast.Name):
            return None
        base = _definition(source, node.bases[0].id)
        return _parameters(*base) if base is not None else None
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.kwarg or node.args.vararg:
        return None
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _path(module: str) -> Path | None:
    """Return the file of a module or the directory of a package, found without importing it; None if there is none."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not rest:
        return Path(spec.origin or top) if spec is not None else None
    for place in spec.submodule_search_locations or ():
        base = Path(place, *rest)
        found = [path for path in (base.with_suffix(".py"), base / "__init__.py", base) if path.exists()]
        found += base.parent.glob(f"{base.name}.*")  # compiled
        if found:
            return found[0]
    return None


def _is_looked_into(path: Path) -> bool:
    """Whether a file is Python of the project's or the user's."""
    return path.suffix == ".py" and not {"site-packages", "dist-packages"} & {*path.parts}


@functools.cache
def _read(path: Path) -> Source:
    """Read the top level of a module.

    Raises:
        SettingsError: a syntax error, with its line, or text that is no Python.
    """
    try:
        tree = ast.parse(path.read_bytes().decode())
    except SyntaxError as error:
        raise SettingsError(f"{path}: line {error.lineno}: {error.msg}") from error
    except ValueError as error:  # not UTF-8, or null bytes
        raise SettingsError(f"{path}: not Python ({error})") from error
    source = Source(path, {}, {})
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and not node.level:
            source.imported.update(
                {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
            )
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            source.nodes[node.name] = node
        else:
            source.nodes.update(dict.fromkeys(_bound(node), node))
    return source


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, those of the statements below it too."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.alias):
            yield inner.asname or inner.name
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            yield inner.name
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
