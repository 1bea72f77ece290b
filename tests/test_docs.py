"""The documentation stays true: every link leads somewhere, every named command exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "bench/RESULTS.md",
    ROOT / "config/README.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_exist_and_programs_are_found(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for script in re.findall(r"bench/\w+\.(?:py|sh|yaml)", text):
        assert (ROOT / script).exists(), script
    bare = re.search(r"^(?: {4,})?(?:snakemake|dvc) ", text, re.MULTILINE)
    assert page.name == "RESULTS.md" or not bare or ".venv/bin" in text[: bare.start()], "not on the PATH there"


def test_the_readme_is_read_in_five_minutes():
    text = (ROOT / "README.md").read_text()
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 900
    assert len(text.splitlines()) <= 120


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^ *make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert target == "results" or re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_shown_rounding_is_the_one_that_is_tested():
    shown = re.findall(r"```\w+\n(.*?)```", (ROOT / "docs/own.md").read_text(), re.DOTALL)
    examples = ROOT / "examples/own_rounding"
    names = ("my_rounding.py", "my_rounding.yaml", "every_table.yaml")
    assert shown[:3] == [(examples / name).read_text() for name in names]


def test_each_section_that_sources_cite_is_there():
    headings = set(re.findall(r"^##+ ([\d.]+) ", (ROOT / "docs/specification.md").read_text(), re.MULTILINE))
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "params").rglob("*.yaml")]
    cited = {
        (section, path.name)
        for path in sources
        for sections in re.findall(r"specification ((?:[\d.]*\d(?:, )?)+)", path.read_text())
        for section in sections.removesuffix(", ").split(", ")
    }
    assert len(cited) > 10
    assert not [where for where in cited if where[0] not in headings]


ROOMS = ("quant", "reconstruct", "models", "tasks")
TENSOR = re.compile(r"(?<!str, )\b(?:Tensor|ndarray)\b")  # a dict of tensors by name has no shape
# (), (count,), int32 (questions, shots), (N, T, H)
SIZES = r"\(\)|\(\w+,\)|t\d+ \(|\((?:\d+ )?(?:[A-Z]\w{0,5}|[\da-z]|\.\.\.|out|iterations|crop)(?: [-+*] \w+)?,[^()]*\)"
SHAPE = re.compile(rf"{SIZES}|(?<!another )\bshape|scalar")


def public_functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, ast.FunctionDef) and (node.name == "__call__" or not node.name.startswith("_")):
            yield node


def test_public_functions_of_tensors_say_their_shapes():
    seen, silent = 0, []
    for path in (path for room in ROOMS for path in (ROOT / "src/flexround" / room).rglob("*.py")):
        for function in public_functions(ast.parse(path.read_text())):
            text = ast.get_docstring(function)  # without one it overrides a method that has it
            notes = [each.annotation for each in ast.walk(function.args) if isinstance(each, ast.arg)]
            if text and any(TENSOR.search(ast.unparse(note)) for note in [*notes, function.returns] if note):
                seen += 1
                silent += [] if SHAPE.search(text) else [f"{path.relative_to(ROOT)}: {function.name}"]
    assert seen > 50
    assert not silent
