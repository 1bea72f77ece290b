"""Code that settings name, ``package.module:name``: is it there, does it take its options? Nothing is imported."""

import ast
import fnmatch
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

from flexround.errors import SettingsError, look_up, suggest
from flexround.settings import reach
from flexround.settings.reach import Symbol
from flexround.settings.schema import Scale, TrainRule
from flexround.settings.validation import attempt, noted

STRICT = ("flexround.settings.schema", "Strict")
Found = tuple[str, ast.AST]  # the module that defines a name, and the definition


def check(target: str, options: Iterable[str] = (), first: int = 0) -> None:
    """Check that a function or class is there and takes the keyword arguments ``options``.

    Args:
        target: ``package.module:name``.
        options: names of keyword arguments.
        first: parameters that it is given by the suite, before them.

    Raises:
        SettingsError: no such module or name, a syntax error, or an argument that it doesn't take.
    """
    if (found := find(target)) is None:
        return
    known = _parameters(*found)
    if known is not None:
        _refuse_unknown(target, options, known[first:])


def check_class(target: str, options: Iterable[str] = ()) -> None:
    """Check a rounding as :func:`check` does; it must be a class, made of weight, grid, axes and the options."""
    errors: list[str] = []
    with noted(errors, "rounding "):
        found = find(target)
        if found is not None and not isinstance(found[1], ast.ClassDef):
            raise SettingsError(f"{target!r}: is no class; name a subclass of Rounding")
        check(target, options, first=3)
    if errors:
        raise SettingsError("\n".join(errors))


def check_scale(scale: Scale) -> None:
    """Check all code that a scale names.

    Raises:
        SettingsError: a line for each target that isn't there, and each option that one doesn't take.
    """
    errors: list[str] = []
    for name, task in scale.tasks.items():
        errors += attempt(f"scale {scale.name}: tasks.{name}: ", check_task, task.module, task.options)
    for name, checkpoint in scale.checkpoints.items():
        model, where = checkpoint.model, f"scale {scale.name}: checkpoints.{name}: "
        errors += attempt(where, check, model.factory, model.args)
        for target in filter(None, (model.blocks, model.equalization, checkpoint.loader, checkpoint.key_map)):
            errors += attempt(where, check, target)
        if (finish := checkpoint.finish) is not None:
            errors += attempt(where, check, finish.function, finish.args, 1)
    for number, rule in enumerate(scale.train):
        errors += attempt(f"scale {scale.name}: train.{number}.set: ", check_training, scale, rule)
    if errors:
        raise SettingsError("\n".join(errors))


def check_training(scale: Scale, rule: TrainRule) -> None:
    """Check that one of the tasks that a rule is for takes each of its settings."""
    modules = [task.module for name, task in scale.tasks.items() if fnmatch.fnmatch(name, rule.when.get("task", "*"))]
    known: list[str] = []
    for module in sorted(set(modules)):
        found = find(module)
        fields = _training_fields(*found) if found is not None else None
        if fields is None:
            return
        known += fields
    if modules:
        _refuse_unknown(", ".join(sorted(set(modules))), rule.set, list(dict.fromkeys(known)))


def check_task(target: str, options: Iterable[str]) -> None:
    """Check that a task is there and that its class ``Options`` has fields of these names."""
    found = find(target)
    fields = _option_fields(*found) if found is not None else None
    if fields is not None:
        _refuse_unknown(target, options, fields)


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


def _parameters(module: str, node: ast.AST) -> list[str] | None:
    """Return the names of a function's parameters, or of a class's without ``self``; None if it takes any."""
    if isinstance(node, ast.ClassDef):
        methods = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
        if "__init__" in methods:
            known = _parameters(module, methods["__init__"])
            return known and known[1:]
        base = _named(module, node.bases[0]) if len(node.bases) == 1 and not node.decorator_list else None
        return _parameters(*base) if base is not None else None
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.kwarg or node.args.vararg:
        return None
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _option_fields(module: str, node: ast.AST) -> list[str] | None:
    """Return the fields of a task's ``Options``, its own or its base's; None if they can't be told."""
    for member in node.body if isinstance(node, ast.ClassDef) else ():
        targets = member.targets if isinstance(member, ast.Assign) else [getattr(member, "target", None)]
        named = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(member, ast.Assign | ast.AnnAssign) and "Options" in named and member.value is not None:
            found = _named(module, member.value)
            return _fields(*found) if found is not None else None
    return _of_base(_option_fields, module, node)


def _training_fields(module: str, node: ast.AST) -> list[str] | None:
    """Return the fields of what a task's ``finetune``, its own or its base's, validates ``settings`` with, as above."""
    for member in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(member, ast.FunctionDef) and member.name == "finetune":
            calls = (call for call in ast.walk(member) if isinstance(call, ast.Call) and len(call.args) > 1)
            kinds = [kind for kind, what in (call.args[:2] for call in calls) if getattr(what, "id", "") == "settings"]
            found = _named(module, kinds[0]) if kinds else None
            return _fields(*found) if found is not None else None
    return _of_base(_training_fields, module, node)


def _of_base(fields: Callable[[str, ast.AST], list[str] | None], module: str, node: ast.AST) -> list[str] | None:
    """Return what a function of a class finds in the first of its bases that is known here."""
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        if (found := _named(module, base)) is not None:
            return fields(*found)
    return None


def _fields(module: str, node: ast.AST) -> list[str] | None:
    """Return the annotated names of a settings class and its bases up to ``Strict``; None if a base can't be told."""
    if not isinstance(node, ast.ClassDef):
        return None
    own = [m.target.id for m in node.body if isinstance(m, ast.AnnAssign) and isinstance(m.target, ast.Name)]
    for base in node.bases:
        if (found := _named(module, base)) is None:
            return None
        inherited = [] if (found[0], getattr(found[1], "name", "")) == STRICT else _fields(*found)
        if inherited is None:
            return None
        own += inherited
    return own


def _refuse_unknown(target: str, options: Iterable[str], known: list[str]) -> None:
    """Raise SettingsError for options that something doesn't take."""
    if wrong := [option for option in options if option not in known]:
        raise SettingsError("\n".join(f"{target}: unknown option {suggest(option, known)}" for option in wrong))
