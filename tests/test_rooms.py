"""Rooms: their sizes, which part of the package may import which, and where imports stand."""

import ast
import graphlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from flexround.settings.layout import ROOT

PACKAGE = ROOT / "src/flexround"
MODULES = sorted(PACKAGE.rglob("*.py"))
LATE_IMPORTS = 4  # inside functions, each for a reason that its comment says

BASE = {"clone", "code", "errors", "imports", "io", "machine", "metrics", "settings"}
WITH_TORCH = {"io/resume.py", "machine/devices.py", "machine/precision.py", "machine/provenance.py"}
LIBRARY = {"quant", "models", "reconstruct", "tasks", "results"}
PARTS = {
    "quant": {"quant"},
    "models": {"models", "quant"},
    "reconstruct": {"reconstruct", "models", "quant"},
    "tasks": {"tasks", "models"},
    "mini": {"mini", "tasks", "models"},
    "results": {"results"},
    "regress": {"regress", "results"},
    "library": {"library", "tasks", "reconstruct", "models", "quant"},
    "__main__": {"tools"},
    "jobs": {"jobs", "results"},  # they name their stage, and import it when they run
    "stages": {"stages", "jobs", *LIBRARY},
    "tools": {"tools", "regress", "jobs", *LIBRARY},
}
BUDGETS = {  # lines of each part; an issue may raise one, a smaller part lowers its own
    "quant": 1390,
    "models": 2480,
    "reconstruct": 2090,
    "library": 2500,
    "tasks": 3230,
    "mini": 360,
    "settings": 1910,
    "jobs": 940,
    "stages": 540,
    "results": 3060,
    "regress": 190,
    "tools": 1560,
    "io": 700,
    "machine": 430,
}
TOP = 330  # lines of the files at the top of the package
TESTS = 15720
LONGEST_NAME = 60  # characters of a test's name


def part(path: Path) -> str:
    """Return the directory or top-level module that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def run_when_imported(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run when their module is imported: not those in functions, nor those for type checkers."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from run_when_imported(node.orelse if for_checkers else ast.iter_child_nodes(node))


def in_functions(tree: ast.Module) -> set[ast.AST]:
    """Return the import statements in the functions of a tree."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = {node for function in functions for node in ast.walk(function)}
    return {node for node in inner if isinstance(node, ast.Import | ast.ImportFrom)}


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return every dotted name that import statements among nodes import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{node.lineno}: write the whole name of what is imported"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & NAMES or {str(node.module)}
    return names


NAMES = {module(path) for path in MODULES}
TREES = {path: ast.parse(path.read_text()) for path in MODULES}
IMPORTED = {path: imported(ast.walk(tree)) for path, tree in TREES.items()}


def of(name: str) -> list[Path]:
    """Return the files of a part."""
    return [path for path in MODULES if part(path) == name]


def parts_imported(path: Path) -> set[str]:
    """Return the parts of the package that a file imports from."""
    return {name.split(".")[1] for name in IMPORTED[path] if name.startswith("flexround.")}


def tops(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    return {name.split(".")[0] for name in IMPORTED[path]}


def test_every_part_has_a_place_in_the_order_of_imports() -> None:
    own = {path.stem for path in (ROOT / "worlds").iterdir()}
    assert not [path for path in MODULES if tops(path) & own]
    assert {part(path) for path in MODULES} - {"__init__"} <= BASE | set(PARTS)


@pytest.mark.parametrize("name", sorted({*PARTS, *BASE}))
def test_dependencies_point_one_way(name: str) -> None:
    allowed = BASE if name in BASE else PARTS[name] if name == "quant" else PARTS[name] | BASE
    for path in of(name):
        assert parts_imported(path) <= allowed, f"{path}: {parts_imported(path) - allowed}"


def test_no_imports_run_in_a_circle() -> None:
    """``graphlib`` raises a CycleError with the modules of a circle."""
    graph = {module(path): imported(run_when_imported(tree.body)) & NAMES for path, tree in TREES.items()}
    assert sum(map(len, graph.values())) > len(graph), "imports are found"
    graphlib.TopologicalSorter(graph).prepare()


def test_quant_imports_torch_and_nothing_else() -> None:
    for path in of("quant"):
        assert tops(path) - {*sys.stdlib_module_names} <= {"torch", "flexround"}, path


@pytest.mark.parametrize("name", ["results", *sorted(BASE)])
def test_what_runs_without_torch_does_not_name_it(name: str) -> None:
    for path in of(name):
        if str(path.relative_to(PACKAGE)) not in WITH_TORCH:
            assert not tops(path) & {"torch", "torchvision", "transformers"}, path


def test_imports_stand_at_the_top() -> None:
    late = {path: len(found) for path, tree in TREES.items() if (found := in_functions(tree))}
    assert sum(late.values()) <= LATE_IMPORTS, late


def lines(paths: Iterable[Path]) -> int:
    """Return the number of lines of files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_no_part_is_more_than_3_percent_above_its_budget() -> None:
    found = {name: lines((PACKAGE / name).rglob("*.py")) for name in BUDGETS}
    found |= {"top": lines(PACKAGE.glob("*.py")), "tests": lines((ROOT / "tests").rglob("*.py"))}
    budgets = BUDGETS | {"top": TOP, "tests": TESTS}
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == {*BUDGETS}
    assert {name: count for name, count in found.items() if count > 1.03 * budgets[name]} == {}


def test_names_of_tests_are_short() -> None:
    text = "".join(path.read_text() for place in ("tests", "worlds/tests") for path in (ROOT / place).rglob("*.py"))
    assert [name for name in re.findall(r"def (test_\w+)", text) if len(name) > LONGEST_NAME] == []
