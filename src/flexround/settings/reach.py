"""Which code a job can reach, and its hash: functions, classes and constants, not files. No torch here.

From the names that a job starts with, every name that their syntax trees mention is followed through the imports. Of a
task's class only those methods count that are called, on ``task`` or by each other: a reconstruction reads a task's
samples, and does not depend on how the task is evaluated. Comments, docstrings and layout are no part of a syntax tree.
"""

import ast
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flexround.errors import SettingsError

PACKAGE = Path(__file__).resolve().parents[1]
STAGE_METHODS = frozenset({"prepare", "calibration", "inputs", "finetune", "evaluate"})  # of flexround.tasks.protocol
TARGET = re.compile(r"[A-Za-z_]\w*(\.\w+)+:\w+")
MAIN = ast.dump(ast.parse('__name__ == "__main__"', mode="eval").body)


class Symbol(NamedTuple):
    """A name at the top of a module; ``*`` stands for the whole module, nothing for what it does when imported."""

    module: str
    name: str


class Part(NamedTuple):
    """What a symbol or a method consists of.

    Attributes:
        digest: of the syntax tree, without ``methods``.
        mentions: symbols that it names.
        calls: names of what may be methods of a task that it calls.
        methods: of the class of a task, by name; the others are always part of their class.
    """

    digest: str
    mentions: frozenset[Symbol]
    calls: frozenset[str]
    methods: dict[str, "Part"]


def walked(*starts: str) -> dict["Module", str]:
    """Return module -> sha256 of the digests of its symbols that can be reached, in order of their names.

    Args:
        *starts: ``package.module:name``; a name alone is a whole module.

    Raises:
        SettingsError: a file with a syntax error.
    """
    found: dict[Module, list[str]] = {}
    for symbol, parts in sorted(_walk(*starts).items()):
        module = read_module(symbol.module)
        if module is not None and parts:
            digests = sorted(part.digest for part in parts)
            found.setdefault(module, []).append(f"{symbol.name} {' '.join(digests)}")
    return {module: hashlib.sha256("\n".join(lines).encode()).hexdigest() for module, lines in found.items()}


def _walk(*starts: str) -> dict[Symbol, list[Part]]:
    """Return every symbol that can be reached, with its part and those of the methods of a task."""
    parts: dict[Symbol, list[Part]] = {}
    skipped: dict[str, list[tuple[Symbol, Part]]] = {}
    wanted: set[str] = set()
    waiting = [Symbol(module, name or "*") for module, _, name in (start.partition(":") for start in starts)]

    def add(symbol: Symbol, part: Part) -> None:
        parts.setdefault(symbol, []).append(part)
        waiting.extend(part.mentions)
        for name, method in part.methods.items():
            if name in wanted:
                add(symbol, method)
            else:
                skipped.setdefault(name, []).append((symbol, method))
        for name in part.calls - wanted:
            wanted.add(name)
            for late in skipped.pop(name, []):
                add(*late)

    while waiting:
        symbol = waiting.pop()
        module = read_module(symbol.module)
        if symbol not in parts and module is not None:
            parts[symbol] = []
            waiting += [Symbol(symbol.module, ""), *module.follow(symbol.name)]
            if (part := module.part(symbol.name)) is not None:
                add(symbol, part)
    return parts


class Module:
    """The top of a module of ours or of the user's: what each name stands for, and the sha256 of the whole file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.nodes: dict[str, list[ast.AST]] = {}
        self.imported: dict[str, Symbol] = {}
        self.parts: dict[str, Part] = {}
        content = path.read_bytes()
        self.sha256 = hashlib.sha256(content).hexdigest()
        try:
            tree = ast.parse(content.decode())
        except SyntaxError as error:
            raise SettingsError(f"{path}: line {error.lineno}: {error.msg}") from error
        except ValueError as error:  # not UTF-8, or null bytes
            raise SettingsError(f"{path}: not Python ({error})") from error
        for node in tree.body:
            self._read(node)

    def _read(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imported |= self._bound(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.nodes.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}:
                self.nodes.setdefault(name, []).append(node)
        elif not (_is_text(node) or (isinstance(node, ast.If) and ast.dump(node.test) == MAIN)):
            self.nodes.setdefault("", []).append(node)  # done when the module is imported
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    self.imported |= self._bound(inner)

    def _bound(self, node: ast.Import | ast.ImportFrom) -> dict[str, Symbol]:
        """Return what the names stand for that an import binds."""
        if isinstance(node, ast.Import):
            return {alias.asname or alias.name.partition(".")[0]: Symbol(alias.name, "*") for alias in node.names}
        origin = importlib.util.resolve_name("." * node.level + (node.module or ""), self.package)
        bound = {}
        for alias in node.names:
            inner = f"{origin}.{alias.name}"
            whole = Symbol(inner, "*") if read_module(inner) is not None else None
            bound[alias.asname or alias.name] = whole or Symbol(origin, alias.name)
        return bound

    def follow(self, name: str) -> list[Symbol]:
        """Return what a name leads to without any code of its own."""
        if name == "":
            return [Symbol(self.package, "")] if self.package != self.name else []
        if name == "*" or not (name in self.nodes or name in self.imported):
            return [Symbol(self.name, other) for other in self.nodes]
        return [self.imported[name]] if name in self.imported else []

    def part(self, name: str) -> Part | None:
        """Return what the code of a name consists of; None if the module holds none."""
        if name in self.nodes and name not in self.parts:
            self.parts[name] = self._part(self.nodes[name], self.is_task(name))
        return self.parts.get(name)

    def _part(self, nodes: list[ast.AST], of_task: bool) -> Part:
        methods: dict[str, Part] = {}
        kept: list[ast.AST] = []
        for node in nodes:
            if isinstance(node, ast.ClassDef) and of_task:
                late = _methods(node)
                methods |= {name: self._part([method], of_task) for name, method in late.items()}
                body = [member for member in node.body if member not in late.values()]
                node = ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": body})
            kept.append(node)
        mentions = {symbol for node in kept for symbol in self._mentions(node)}
        calls = {name for node in kept for name in _calls(node, of_task)}
        digest = hashlib.sha256("".join(map(_text, kept)).encode()).hexdigest()
        return Part(digest, frozenset(mentions), frozenset(calls), methods)

    def is_task(self, name: str) -> bool:
        """Whether a name is that of a class that has a method of the task protocol, of its own or by inheritance."""
        if name in self.imported:
            module = read_module(self.imported[name].module)
            return module is not None and module is not self and module.is_task(self.imported[name].name)
        classes = [node for node in self.nodes.get(name, []) if isinstance(node, ast.ClassDef)]
        members = {member.name for node in classes for member in node.body if isinstance(member, ast.FunctionDef)}
        bases = [base.id for node in classes for base in node.bases if isinstance(base, ast.Name) and base.id != name]
        return bool(STAGE_METHODS & members) or any(map(self.is_task, bases))

    def _mentions(self, node: ast.AST) -> Iterator[Symbol]:
        """Yield the symbols that a tree names; of a module, only the attributes that are used."""
        names = dict(self.imported)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                names |= self._bound(inner)
        of_modules = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                symbol = names.get(inner.value.id)
                if symbol is not None and symbol.name == "*":
                    of_modules.add(inner.value)
                    yield Symbol(symbol.module, inner.attr)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner not in of_modules:
                if inner.id in names:
                    yield names[inner.id]
                elif inner.id in self.nodes:
                    yield Symbol(self.name, inner.id)
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str) and TARGET.fullmatch(inner.value):
                yield Symbol(*inner.value.split(":"))


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Return the methods of a class without those that Python itself calls."""
    members = (member for member in node.body if isinstance(member, ast.FunctionDef))
    return {member.name: member for member in members if not member.name.startswith("__")}


def _calls(node: ast.AST, of_task: bool) -> Iterator[str]:
    """Yield the attributes that a tree names of ``task`` and, in the class of a task, of itself or its base class."""
    owners = ("task", "self", "super") if of_task else ("task",)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            owner = inner.value.func if isinstance(inner.value, ast.Call) else inner.value
            if isinstance(owner, ast.Name) and owner.id in owners:
                yield inner.attr


def _is_text(node: object) -> bool:
    """Whether a statement is a string alone: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _text(node: object) -> str:
    """Return a syntax tree as text that is the same for every version of Python; docstrings are left out."""
    if isinstance(node, list):
        return f"[{','.join(_text(item) for item in node if not _is_text(item))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment"))
    inner = ",".join(f"{name}={_text(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


@functools.cache
def read_module(name: str) -> Module | None:
    """Return a module of this package or of the user's, without importing it; None for any other."""
    for root in _roots(name.partition(".")[0]):
        base = root.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.exists():
                return Module(name, path)
    return None


@functools.cache
def _roots(top: str) -> list[Path]:
    """Return the directories that hold a top-level module; none if it is installed, standard or unknown."""
    if top == PACKAGE.name:
        return [PACKAGE.parent]
    spec = None if not top or top in sys.stdlib_module_names else importlib.util.find_spec(top)
    if spec is None:
        return []
    places = [*(spec.submodule_search_locations or [spec.origin or ""])]  # a package's directories, a module's file
    return [Path(place).parent for place in places if place and "site-packages" not in Path(place).parts]
