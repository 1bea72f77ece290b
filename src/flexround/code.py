"""One digest of the code behind a result: rooms of this package and the user's modules. Imports no torch.

A room is a directory or a file of the package. The digest ignores comments, docstrings and layout of Python files.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import py_compile
import sys
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SUFFIXES = {".py", ".yaml", ".cpp", ".html", ".tex", ".css", ".js"}
CHECKED = (3).to_bytes(4, "little")  # flags in the header of bytecode that Python checks against its source's content
INSTALLED = {"site-packages", "dist-packages"}  # Debian uses the second name


def files(rooms: Iterable[str], modules: Iterable[str] = ()) -> dict[str, Path]:
    """Return name -> file for all code of rooms and modules. Names of a user's files omit directories: files may move.

    Args:
        rooms: directories and files, relative to the package.
        modules: ``package.module`` or ``package.module:name``. The user's modules that these import are added; modules
            of this or an installed package are omitted.
    """
    places = [PACKAGE / room for room in rooms]
    paths = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
    found = {str(path.relative_to(PACKAGE)): path for path in paths if path.suffix in SUFFIXES}
    return found | _own(modules)


def digest(of: dict[str, Path]) -> str:
    """Return a hash of files; comments, docstrings and layout of Python files don't count.

    Python afterwards runs the hashed code, because it compares the files' bytecode with their content.

    Raises:
        SyntaxError: a Python file doesn't parse.
    """
    return _hash((name, _essence(str(path), path.read_bytes())) for name, path in sorted(of.items()))


def sha256(of: dict[str, Path]) -> str:
    """Return a hash of the whole files, within milliseconds."""
    return _hash((name, path.read_bytes()) for name, path in sorted(of.items()))


def _hash(parts: Iterable[tuple[str, bytes]]) -> str:
    found = hashlib.sha256()
    for name, content in parts:
        found.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return found.hexdigest()


@functools.cache
def _essence(path: str, content: bytes) -> bytes:
    """Return the content of a file; for a Python file, its syntax tree without docstrings."""
    if not path.endswith(".py"):
        return content
    compare_bytecode(path)
    return _text(ast.parse(content, path)).encode()


def compare_bytecode(path: str) -> None:
    """Make Python compare a file's bytecode with the file's content from now on.

    By default Python compares size and time in seconds, which an edit within the same second may leave unchanged.
    """
    compiled = Path(importlib.util.cache_from_source(path))
    with contextlib.suppress(OSError, py_compile.PyCompileError):  # a read-only directory
        if compiled.read_bytes()[4:8] != CHECKED:
            py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def _text(node: object) -> str:
    """Return a syntax tree as text, equal in every version of Python, without docstrings."""
    if isinstance(node, list):
        return f"[{','.join(_text(item) for item in node if not _is_docstring(item))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment"))
    inner = ",".join(f"{name}={_text(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _own(targets: Iterable[str]) -> dict[str, Path]:
    """Return name -> file for the user's modules and all modules of the user that they import."""
    found: dict[str, Path] = {}
    waiting = [target.partition(":")[0] for target in targets]
    while waiting:
        name = waiting.pop()
        if name in found or (path := module_file(name)) is None or path.is_relative_to(PACKAGE):
            continue
        found[name], package = path, name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting.append(package)
        for node in ast.walk(ast.parse(path.read_bytes(), path)):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                waiting += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return found


def module_file(name: str) -> Path | None:
    """Return the file of this package's or the user's module, without importing it; None for any other module."""
    top = name.partition(".")[0]
    try:
        spec = None if not top or top in sys.stdlib_module_names else importlib.util.find_spec(top)
    except ValueError:  # a module created in memory
        return None
    places = spec and (spec.submodule_search_locations or [spec.origin or ""])
    for root in (Path(place).parent for place in places or ()):
        base = root.joinpath(*name.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):  # Python's order
            if path.exists() and not INSTALLED & {*path.parts}:
                return path
    return None
