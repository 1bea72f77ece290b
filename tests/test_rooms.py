"""Rooms: which part of the package may import which, and where imports stand."""

import ast
import sys
from pathlib import Path

import pytest

from flexround.settings.layout import ROOT

PACKAGE = ROOT / "src/flexround"
MODULES = sorted(PACKAGE.rglob("*.py"))
LATE_IMPORTS = 5  # inside functions, each for a reason that its comment says

BASE = {"clone", "errors", "imports", "io", "machine", "metrics", "settings"}
WITH_TORCH = {"io/resume.py", "machine/devices.py", "machine/precision.py", "machine/provenance.py"}
LIBRARY = {"quant", "models", "reconstruct", "tasks", "results"}
PARTS = {
    "quant": {"quant"},
    "models": {"models", "quant"},
    "reconstruct": {"reconstruct", "models", "quant"},
    "tasks": {"tasks", "models"},
    "mini": {"mini", "tasks", "models"},
    "results": {"results"},
    "rehearsal": {"rehearsal", "mini", "tasks", "models"},
    "regress": {"regress", "results"},
    "library": {"library", "tasks", "reconstruct", "models", "quant"},
    "__main__": {"tools"},
    "jobs": {"jobs", "results"},  # they name their stage, and import it when they run
    "stages": {"stages", "jobs", *LIBRARY},
    "tools": {"tools", "regress", "rehearsal", *LIBRARY},
}


def part(path: Path) -> str:
    """Return the directory or top-level module that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return every dotted name imported anywhere in a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of what is imported"
            ours = node.module == "flexround"
            names |= {f"flexround.{alias.name}" for alias in node.names} if ours else {str(node.module)}
    return names


def parts_imported(path: Path) -> set[str]:
    """Return the parts of the package that a file imports from."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("flexround.")}


def late_imports(path: Path) -> list[ast.stmt]:
    """Return the import statements inside the functions of a file."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    inner = {id(node): node for function in functions for node in ast.walk(function)}
    return [node for node in inner.values() if isinstance(node, ast.Import | ast.ImportFrom)]


def test_the_generator_of_minis_files_is_no_part_of_the_package() -> None:
    own = {path.stem for path in (ROOT / "worlds").iterdir()}
    assert not {name for path in MODULES for name in imported(path) if name.split(".")[0] in own}


def test_every_part_has_a_place_in_the_order() -> None:
    assert {part(path) for path in MODULES} - {"__init__"} <= BASE | set(PARTS)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_dependencies_point_one_way(name: str) -> None:
    allowed = PARTS[name] if name == "quant" else PARTS[name] | BASE
    for path in MODULES:
        if part(path) == name:
            assert parts_imported(path) <= allowed, f"{path}: {parts_imported(path) - allowed}"


def test_what_all_share_imports_none_of_the_parts() -> None:
    for path in MODULES:
        if part(path) in BASE:
            assert parts_imported(path) <= BASE, f"{path}: {parts_imported(path) - BASE}"


def test_quant_imports_torch_and_nothing_else() -> None:
    for path in MODULES:
        if part(path) == "quant":
            foreign = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
            assert foreign <= {"torch", "flexround"}, path


@pytest.mark.parametrize("name", ["results", *sorted(BASE)])
def test_what_runs_without_torch_does_not_name_it(name: str) -> None:
    for path in MODULES:
        if part(path) == name and str(path.relative_to(PACKAGE)) not in WITH_TORCH:
            assert not {module.split(".")[0] for module in imported(path)} & {"torch", "torchvision", "transformers"}


def test_imports_stand_at_the_top() -> None:
    late = {path: len(found) for path in MODULES if (found := late_imports(path))}
    assert sum(late.values()) <= LATE_IMPORTS, late
