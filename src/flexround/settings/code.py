"""Code that settings name, ``package.module:name``: is it there, does it take its options? Nothing is imported."""

import ast
import functools
import importlib.util
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from flexround.code import module_file
from flexround.errors import SettingsError, look_up, suggest

Function = ast.FunctionDef | ast.ClassDef


def check(target: str, options: Iterable[str] = (), first: int = 0, complete: bool = False) -> None:
    """Check that a function or class is there and takes the keyword arguments ``options``.

    Args:
        target: ``package.module:name``. An installed package is not looked into.
        options: names of keyword arguments.
        first: parameters that it is given by the suite, before them.
        complete: whether it is given nothing else.

    Raises:
        SettingsError: no such module or name, a syntax error, or an argument that it doesn't take or that it lacks.
    """
    found = _find(target)
    if found is None or (parameters := _parameters(*found)) is None:
        return
    known = dict(list(parameters.items())[first:])
    errors = [f"{target}: unknown option {suggest(key, known)}" for key in options if key not in known]
    lacking = [key for key, required in known.items() if complete and required and key not in options]
    if errors := [*errors, *(f"{target}: option {key!r} has no default; give it in options" for key in lacking)]:
        raise SettingsError("\n".join(errors))


def check_rounding(target: str, options: Iterable[str] = ()) -> None:
    """Check a rounding as :func:`check` does; it must be a class, made of weight, grid, axes and the options.

    It is a subclass of ``Rounding`` with a ``forward``, as far as that can be read.
    """
    try:
        if (found := _find(target)) is not None and (lacks := _lacks(*found)):
            raise SettingsError(f"{target!r}: {lacks}")
        check(target, options, first=3, complete=True)
    except SettingsError as error:
        raise SettingsError("\n".join(f"rounding {line}" for line in str(error).splitlines())) from error


def overrides(target: str, method: str) -> bool:
    """Return whether the class of a rounding, or a base of it but ``Rounding``, has a method, as far as it is read."""
    found = _find(target)
    while found is not None and isinstance(node := found[1], ast.ClassDef) and node.name != "Rounding":
        if method in (getattr(member, "name", "") for member in node.body):
            return True
        found = _definition(found[0], ast.unparse(node.bases[0])) if node.bases else None
    return False


class Module(NamedTuple):
    """A module of this package or of the user's, read and not imported."""

    name: str
    path: Path
    nodes: dict[str, ast.AST]  # name at the top of the module -> what defines it last
    imported: dict[str, tuple[str, str]]  # name -> module and name that an import binds to it; no name: the module


@functools.cache
def _read(name: str) -> Module | None:
    """Return a module; None if it is installed, Python's own or unknown."""
    if (path := module_file(name)) is None:
        return None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        waiting: list[ast.AST] = [*ast.parse(path.read_bytes()).body]
    except SyntaxError as error:
        raise SettingsError(f"{path}: line {error.lineno}: {error.msg}") from error
    module = Module(name, path, {}, {})
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Import):
            names = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            module.imported.update(dict.fromkeys(names, ("", "")))
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                name = "" if module_file(f"{origin}.{alias.name}") else alias.name
                module.imported[alias.asname or alias.name] = (origin, name)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            module.nodes[node.name] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            module.nodes[node.id] = node
        else:
            waiting += ast.iter_child_nodes(node)
    return module


def _find(target: str) -> tuple[Module, Function] | None:
    """Return what defines a name and the module of it; None if that can't be told without running it."""
    name_of_module, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*name_of_module.split("."), name)):
        raise SettingsError(f"{target!r}: write it as package.module:Name")
    module = _read(name_of_module)
    if module is None:
        if not _is_there(name_of_module):
            raise SettingsError(f"{target!r}: no module {name_of_module!r} beside this file or on the Python path")
        return None
    if name in module.imported and not module.imported[name][1]:
        raise SettingsError(f"{target!r}: is a module; name a class or function")
    if not {name, "*", "__getattr__"} & {*module.nodes, *module.imported}:
        look_up(f"{target!r}: {module.path} has no", module.nodes, name)
    return _definition(module, name)


def _is_there(module: str) -> bool:
    """Whether an installed module can be found, without importing its packages."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for part in rest:
        places = spec and spec.submodule_search_locations
        spec = PathFinder.find_spec(f"{spec.name}.{part}", places) if spec and places else None
    return spec is not None


def _definition(module: Module, name: str) -> tuple[Module, Function] | None:
    """Follow a name of a module through imports to the function or class that it stands for."""
    if name in module.imported:
        origin = _read(module.imported[name][0])
        return _definition(origin, module.imported[name][1]) if origin else None
    node = module.nodes.get(name)
    return (module, node) if isinstance(node, Function) else None


def _lacks(module: Module, node: Function, forward: bool = False) -> str:
    """Return what a class lacks to be a rounding; nothing if its bases lead to where it can't be read."""
    if not isinstance(node, ast.ClassDef):
        return "is no class; name a subclass of Rounding"
    if (module.name, node.name) == ("flexround.quant.rounding", "Rounding"):
        return "" if forward else "has no forward of its own; write one that returns the rounded weight"
    forward = forward or any(
        "forward" in (getattr(m, "name", ""), ast.unparse(m).partition(" = ")[0]) for m in node.body
    )
    bases = [ast.unparse(base) for base in node.bases]
    if bases in ([], ["object"], ["nn.Module"], ["torch.nn.Module"]):
        return "is no subclass of Rounding; make it one (from flexround.quant.rounding import Rounding)"
    base = _definition(module, bases[0]) if len(bases) == 1 else None
    return _lacks(*base, forward) if base is not None else ""


def _parameters(module: Module, node: Function) -> dict[str, bool] | None:
    """Return a function's parameters, or a class's without ``self``, and if each is required; None if it takes any."""
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                known = _parameters(module, member)
                return known and dict(list(known.items())[1:])
        if len(node.bases) != 1 or node.decorator_list or not isinstance(node.bases[0], ast.Name):
            return None
        base = _definition(module, node.bases[0].id)
        return _parameters(*base) if base is not None else None
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.kwarg or node.args.vararg:
        return None
    placed = [*node.args.posonlyargs, *node.args.args]
    defaults = [*[None] * (len(placed) - len(node.args.defaults)), *node.args.defaults, *node.args.kw_defaults]
    return {each.arg: not default for each, default in zip([*placed, *node.args.kwonlyargs], defaults, strict=True)}
