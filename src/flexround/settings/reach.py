"""The code that a job can import: the project's and the user's modules, found in syntax trees. No torch here.

From the modules that a job starts with, every import is followed, also one inside a function, and every string
``package.module:name``, by which settings and code name what is imported late. Imports for type checkers alone do not
count. A file is known by the digest of its syntax tree, of which comments, docstrings and layout are no part.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import py_compile
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flexround.errors import SettingsError

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = {"site-packages", "dist-packages"}  # the second is Debian's
CHECKED = (3).to_bytes(4, "little")  # in the header of bytecode that Python compares with the content of its source
TARGET = re.compile(r"[A-Za-z_]\w*(\.\w+)+:\w+")


class Symbol(NamedTuple):
    """A name at the top of a module; ``*`` stands for the whole module."""

    module: str
    name: str


def closure(*starts: str) -> list["Module"]:
    """Return all modules of ours and of the user's that can be imported, in the order of their names.

    Args:
        *starts: ``package.module`` or ``package.module:name`` of the code that the job starts with.

    Raises:
        SettingsError: a file with a syntax error.
    """
    found: dict[str, Module] = {}
    waiting = [start.partition(":")[0] for start in starts]
    while waiting:
        name = waiting.pop()
        if name not in found and (module := read_module(name)) is not None:
            found[name] = module
            waiting += module.imports
    return [module for _, module in sorted(found.items())]


class Module:
    """A module of ours or of the user's, read and not imported.

    Attributes:
        sha256: of the whole file.
        imports: modules that it imports or names, among them the packages that it lies in; some may not exist.
        nodes: name at the top of the module -> what defines it last.
        imported: name at the top of the module -> what an import binds to it.
    """

    def __init__(self, name: str, path: Path) -> None:
        """Read the file of a module.

        Raises:
            SettingsError: a syntax error, or a file that is not text in UTF-8.
        """
        self.name, self.path = name, path
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        content = path.read_bytes()
        compare_bytecode(path)
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._tree = tree = parsed(path, content)
        self.imports = {self.package, *self._imports(tree)}
        self.nodes: dict[str, ast.AST] = {}
        self.imported: dict[str, Symbol] = {}
        for node in tree.body:
            self._read(node)

    @property
    def sources(self) -> list[Path]:
        """The C++ files that a package is built of."""
        return sorted(self.path.parent.glob("*.cpp")) if self.path.name == "__init__.py" else []

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the syntax tree without docstrings."""
        return digest(self._tree)

    def _imports(self, node: ast.AST) -> Iterator[str]:
        """Yield the modules that a tree imports or names."""
        inner = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            inner = iter(node.orelse)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = self._origin(node)
            yield from (origin, *(f"{origin}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TARGET.fullmatch(node.value):
            yield node.value.partition(":")[0]
        for child in inner:
            yield from self._imports(child)

    def _origin(self, node: ast.ImportFrom) -> str:
        """Return the full name of the module that names are imported from."""
        return importlib.util.resolve_name("." * node.level + (node.module or ""), self.package)

    def _read(self, node: ast.AST) -> None:
        """Note the names that a statement at the top of the module binds."""
        if isinstance(node, ast.Import):
            names = {alias.asname or alias.name.partition(".")[0]: Symbol(alias.name, "*") for alias in node.names}
            self.imported |= names
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{self._origin(node)}.{alias.name}"
                symbol = Symbol(inner, "*") if _file(inner) else Symbol(self._origin(node), alias.name)
                self.imported[alias.asname or alias.name] = symbol
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.nodes[node.name] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.nodes[node.id] = node
        else:
            for child in ast.iter_child_nodes(node):
                self._read(child)


def compare_bytecode(path: Path) -> None:
    """Have Python compare the bytecode of a file with its content from now on, not with its size and time in seconds.

    By these, the bytecode of a file that was edited within a second passes for that of the edited file.
    """
    compiled = Path(importlib.util.cache_from_source(path))
    with contextlib.suppress(OSError, py_compile.PyCompileError):  # a directory that nobody writes to
        if compiled.read_bytes()[4:8] != CHECKED:
            py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def parsed(path: Path, content: bytes) -> ast.Module:
    """Return the syntax tree of a file.

    Raises:
        SettingsError: a syntax error, or no text in UTF-8.
    """
    try:
        return ast.parse(content.decode())
    except SyntaxError as error:
        raise SettingsError(f"{path}: line {error.lineno}: {error.msg}") from error
    except ValueError as error:  # not UTF-8, or null bytes
        raise SettingsError(f"{path}: not Python ({error})") from error


def digest(tree: ast.Module) -> str:
    """Return the sha256 of a syntax tree without docstrings."""
    return hashlib.sha256(_text(tree).encode()).hexdigest()


def _text(node: object) -> str:
    """Return a syntax tree as text that is the same for every version of Python; docstrings are left out."""
    if isinstance(node, list):
        return f"[{','.join(_text(item) for item in node if not _is_docstring(item))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment"))
    inner = ",".join(f"{name}={_text(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@functools.cache
def read_module(name: str) -> Module | None:
    """Return a module of this package or of the user's, without importing it; None for any other."""
    return Module(name, path) if (path := _file(name)) else None


def _file(name: str) -> Path | None:
    """Return the file of a module of this package or of the user's."""
    for root in _roots(name.partition(".")[0]):
        base = root.joinpath(*name.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):  # Python's order
            if path.exists():
                return path
    return None


@functools.cache
def _roots(top: str) -> list[Path]:
    """Return the directories that hold a top-level module; none if it is installed, standard or unknown."""
    if top == PACKAGE.name:
        return [PACKAGE.parent]
    try:
        spec = None if not top or top in sys.stdlib_module_names else importlib.util.find_spec(top)
    except ValueError:  # a module that was put together in memory has neither a spec nor a file
        spec = None
    if spec is None:
        return []
    places = [*(spec.submodule_search_locations or [spec.origin or ""])]  # a package's directories, a module's file
    return [Path(place).parent for place in places if place and not INSTALLED & {*Path(place).parts}]
