"""Code that settings name, ``package.module:name``: is it there, does it take its options? Nothing is imported."""

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from flexround.errors import SettingsError, look_up, suggest
from flexround.settings import reach
from flexround.settings.layout import MODULES

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


def _find(target: str) -> tuple[reach.Module, Function] | None:
    """Return what defines a name and the module of it; None if that can't be told without running it."""
    name_of_module, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*name_of_module.split("."), name)):
        raise SettingsError(f"{target!r}: write it as package.module:Name")
    if (spec := _spec(name_of_module)) is None:
        raise SettingsError(f"{target!r}: no module {name_of_module!r} beside this file or on the Python path")
    _refuse_another(target, spec)
    module = reach.read_module(name_of_module)
    if module is None:
        if (top := name_of_module.partition(".")[0]) in sys.stdlib_module_names:
            file = getattr(importlib.util.find_spec(top), "origin", None)
            raise SettingsError(f"{target!r}: {top} is Python's own module, {file}; give your file another name")
        return None
    if name in module.imported and module.imported[name].name == "*":
        raise SettingsError(f"{target!r}: is a module; name a class or function")
    if not {name, "*", "__getattr__"} & {*module.nodes, *module.imported}:
        look_up(f"{target!r}: {module.path} has no", module.nodes, name)
    return _definition(module, name)


def _refuse_another(target: str, found: ModuleSpec) -> None:
    """Raise SettingsError if a module lies beside a user's file and another one of its name comes first."""
    part = Path(*found.name.split("."))
    for directory in filter(None, os.environ.get(MODULES, "").split(os.pathsep)):
        for beside in (Path(directory, part.with_suffix(".py")), Path(directory, part, "__init__.py")):
            if found.origin and beside.exists() and beside.read_bytes() != Path(found.origin).read_bytes():
                raise SettingsError(
                    f"{target!r}: {found.origin} would run in the place of {beside}; rename one of them"
                )


def _spec(module: str) -> ModuleSpec | None:
    """Return where a module lies, found without importing its packages; None if there is none."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for part in rest:
        places = spec and spec.submodule_search_locations
        spec = PathFinder.find_spec(f"{spec.name}.{part}", places) if spec and places else None
    return spec


def _definition(module: reach.Module, name: str) -> tuple[reach.Module, Function] | None:
    """Follow a name of a module through imports to the function or class that it stands for."""
    if name in module.imported:
        origin = reach.read_module(module.imported[name].module)
        return _definition(origin, module.imported[name].name) if origin else None
    node = module.nodes.get(name)
    return (module, node) if isinstance(node, Function) else None


def _lacks(module: reach.Module, node: Function, forward: bool = False) -> str:
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


def _parameters(module: reach.Module, node: Function) -> dict[str, bool] | None:
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
