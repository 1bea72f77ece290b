"""Find the definitions of code that settings name, ``package.module:name``, in syntax trees; nothing is imported."""

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path

from flexround.errors import SettingsError, look_up
from flexround.settings import reach
from flexround.settings.reach import Symbol

STRICT = ("flexround.settings.schema", "Strict")
Found = tuple[str, ast.AST]  # the module that defines a name, and the definition


def find(target: str) -> Found | None:
    """Return where a name is defined; None if that is in an installed package, or can't be told without running it.

    Raises:
        SettingsError: written otherwise, no such module, a syntax error in it, or no such name.
    """
    module, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise SettingsError(f"{target!r}: write it as package.module:Name")
    own = reach.read_module(module)
    if own is None:
        if not _installed(module):
            raise SettingsError(f"{target!r}: no module {module!r} beside this file or on the Python path")
        return None
    found = _definition(Symbol(module, name))
    if found is None and name not in own.imported and "*" not in own.imported and "__getattr__" not in own.nodes:
        look_up(f"{target!r}: {own.path} has no", own.nodes, name)
    return found


def _installed(module: str) -> bool:
    """Whether an installed package or the standard library has a module; only the package's place is looked up."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not rest:
        return spec is not None
    places = [Path(place, *rest) for place in spec.submodule_search_locations or ()]
    return any(place.is_dir() or list(place.parent.glob(f"{place.name}.*")) for place in places)


def _definition(symbol: Symbol) -> Found | None:
    """Follow a name through imports to the function or class that it stands for."""
    module = reach.read_module(symbol.module)
    if module is None:
        return None
    if symbol.name in module.nodes:
        node = module.nodes[symbol.name][-1]
        return (symbol.module, node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
    return _definition(module.imported[symbol.name]) if symbol.name in module.imported else None


def _named(module: str, node: ast.AST | None) -> Found | None:
    """Return the definition that a name, or an attribute of a module, stands for in a module."""
    own = reach.read_module(module)
    if isinstance(node, ast.Name):
        return _definition(Symbol(module, node.id))
    if own is not None and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = own.imported.get(node.value.id)
        return _definition(Symbol(owner.module, node.attr)) if owner is not None else None
    return None


def parameters(module: str, node: ast.AST) -> list[str] | None:
    """Return the names of a function's parameters, or of a class's without ``self``; None if it takes any."""
    if isinstance(node, ast.ClassDef):
        methods = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
        if "__init__" in methods:
            known = parameters(module, methods["__init__"])
            return known and known[1:]
        base = _named(module, node.bases[0]) if len(node.bases) == 1 and not node.decorator_list else None
        return parameters(*base) if base is not None else None
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.kwarg or node.args.vararg:
        return None
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def options_of(task: str) -> Found | None:
    """Return the class ``Options`` of a task, ``package.module:Name``; None if it can't be told."""
    found = find(task)
    return _options_class(*found) if found is not None else None


def training_of(task: str) -> Found | None:
    """Return the class that a task, ``package.module:Name``, checks its train settings by; None if it can't be told."""
    found = find(task)
    return _training_class(*found) if found is not None else None


def _options_class(module: str, node: ast.AST) -> Found | None:
    """Return a task's ``Options``, its own or its base's; None if they can't be told."""
    for member in node.body if isinstance(node, ast.ClassDef) else ():
        targets = member.targets if isinstance(member, ast.Assign) else [getattr(member, "target", None)]
        named = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(member, ast.Assign | ast.AnnAssign) and "Options" in named and member.value is not None:
            return _named(module, member.value)
    return _of_base(_options_class, module, node)


def _training_class(module: str, node: ast.AST) -> Found | None:
    """Return what a task's ``finetune``, its own or its base's, validates ``settings`` with, as above."""
    for member in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(member, ast.FunctionDef) and member.name == "finetune":
            calls = (call for call in ast.walk(member) if isinstance(call, ast.Call) and len(call.args) > 1)
            kinds = [kind for kind, what in (call.args[:2] for call in calls) if getattr(what, "id", "") == "settings"]
            return _named(module, kinds[0]) if kinds else None
    return _of_base(_training_class, module, node)


def _of_base(search: Callable[[str, ast.AST], Found | None], module: str, node: ast.AST) -> Found | None:
    """Return what a function of a class finds in the first of its bases that is known here."""
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        if (found := _named(module, base)) is not None:
            return search(*found)
    return None


def fields(module: str, node: ast.AST) -> list[str] | None:
    """Return the annotated names of a settings class and its bases up to ``Strict``; None if a base can't be told."""
    if not isinstance(node, ast.ClassDef):
        return None
    own = [m.target.id for m in node.body if isinstance(m, ast.AnnAssign) and isinstance(m.target, ast.Name)]
    for base in node.bases:
        if (found := _named(module, base)) is None:
            return None
        inherited = [] if (found[0], getattr(found[1], "name", "")) == STRICT else fields(*found)
        if inherited is None:
            return None
        own += inherited
    return own
