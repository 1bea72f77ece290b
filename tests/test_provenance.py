"""Which source files a stage depends on, against what its process really imports."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flexround import provenance
from flexround.provenance import code_hash, source_files
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.plan import Plan

PACKAGE = ROOT / "src/flexround"
STAGES = sorted(path.stem for path in (PACKAGE / "stages").glob("*.py") if path.stem not in ("__init__", "cli"))


@pytest.fixture
def fresh():
    """Forget what was read about modules, before and after the test."""
    caches = [function for function in vars(provenance).values() if hasattr(function, "cache_clear")]
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch, fresh):
    """Put a small package in the place of ours."""
    root = tmp_path / "flexround"
    contents = {
        "__init__.py": "",
        "start.py": "import json\nfrom flexround.deep import direct\n\ndef late():\n    from flexround import inside\n",
        "inside.py": "def later():\n    import flexround.deep.last as last\n",
        "deep/__init__.py": "",
        "deep/direct.py": "from flexround.deep.last import VALUE\n",
        "deep/last.py": "VALUE = 1\n",
        "alone.py": "",
        "deep/alone.py": "from flexround import start\n",
    }
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(provenance, "PACKAGE", root)
    return root


def names(files, root):
    return {str(file.relative_to(root)) for file in files}


# the closure


def test_imports_are_followed_also_inside_functions_and_nothing_else_is_found(package):
    found = names(source_files("flexround.start"), package) - {"__init__.py", "deep/__init__.py"}
    assert found == {"start.py", "inside.py", "deep/direct.py", "deep/last.py"}


def test_a_circle_of_imports_ends(package):
    (package / "deep/last.py").write_text("from flexround import start\n")
    assert {"start.py", "deep/last.py"} <= names(source_files("flexround.deep.last"), package)


def test_several_modules_are_joined_and_listed_once(package):
    files = source_files("flexround.deep.last", "flexround.deep.direct", "flexround.alone")
    assert len(files) == len(set(files))
    assert {"deep/last.py", "deep/direct.py", "alone.py"} <= names(files, package)


def test_the_hash_follows_the_content_of_the_closure_alone(package):
    before = code_hash("flexround.start")
    assert code_hash("flexround.start") == before
    assert code_hash("flexround.alone") != before
    (package / "alone.py").write_text("# edited\n")
    assert code_hash("flexround.start") == before
    (package / "deep/last.py").write_text("VALUE = 2\n")
    assert code_hash("flexround.start") != before


def test_moving_text_from_one_file_to_the_next_changes_the_hash(package):
    first, second = package / "deep/direct.py", package / "deep/last.py"
    first.write_text("import flexround.deep.last\n# a\n")
    second.write_text("# b\n")
    before = code_hash("flexround.deep.direct")
    first.write_text("import flexround.deep.last\n")
    second.write_text("# a\n# b\n")
    assert code_hash("flexround.deep.direct") != before


# a module of the user's


@pytest.fixture
def own(tmp_path, monkeypatch, fresh):
    """Put a rounding outside the package, with a helper, on the Python path."""
    (tmp_path / "my_rounding.py").write_text(
        "import json\nimport numpy\nfrom flexround.quant.flexround import FlexRound\nfrom my_helper import half\n\n"
        "class Mine(FlexRound):\n    pass\n"
    )
    (tmp_path / "my_helper.py").write_text("half = 0.5\n")
    (tmp_path / "my_other.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_users_module_counts_with_its_own_files(own):
    files = source_files("my_rounding")
    assert own / "my_rounding.py" in files
    assert own / "my_helper.py" in files, "an edit of the helper must rerun what used it"
    assert own / "my_other.py" not in files


def test_a_users_module_counts_with_what_it_uses_of_ours(own):
    assert {"quant/flexround.py", "quant/grid.py"} <= {
        str(file.relative_to(PACKAGE)) for file in source_files("my_rounding") if file.is_relative_to(PACKAGE)
    }, "it subclasses FlexRound: an edit of FlexRound must rerun it"


def test_installed_packages_and_the_standard_library_do_not_count(own):
    files = source_files("my_rounding", "json", "numpy")
    assert all(file.is_relative_to(own) or file.is_relative_to(PACKAGE) for file in files)


def test_a_users_package_without_init_counts(own):
    (own / "my_package").mkdir()
    (own / "my_package/rounding.py").write_text("from .base import X\n")
    (own / "my_package/base.py").write_text("X = 1\n")
    found = {str(Path(path)) for path in Plan(load_params("mini")).sources("calibrate", "my_package.rounding:X")}
    assert {str(own / "my_package" / name) for name in ("rounding.py", "base.py")} <= found


# the sources of the stages


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("b-rtn-w4", {"rtn"}),
        ("b-adaround-w4", {"adaround"}),
        ("b-flexround-w4", {"flexround"}),
        ("b-adaquant-w4", {"adaquant", "flexround"}),  # one file holds AdaQuant and AdaQuant + FlexRound
    ],
)
def test_a_run_depends_on_its_own_rounding_alone(recipe, expected):
    plan = Plan(load_params("mini"))
    run = Run("mini", "imagenet", "resnet18-brecq", recipe, 0)
    sources = plan.sources("reconstruct", *plan.model_targets(run.task, run.checkpoint), *plan.rounding_targets(run))
    roundings = {"rtn", "adaround", "adaquant", "flexround"}
    assert {Path(path).stem for path in sources if "quant" in Path(path).parts} & roundings == expected
    assert "src/flexround/reconstruct/engine.py" in sources
    assert "src/flexround/models/resnet.py" in sources
    assert not [path for path in sources if "tables" in Path(path).parts or "mobilenetv2" in path]


def imported(*modules):
    """Return which files of ours a fresh process has read after it imported the modules."""
    code = (
        f"import importlib, json, sys\n[importlib.import_module(name) for name in {modules!r}]\n"
        "print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'flexround']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {Path(file) for file in json.loads(done.stdout)}


def empty(path):
    """Whether a file holds a docstring at most."""
    body = ast.parse(path.read_text()).body
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)


def imported_late(files):
    """Return the names in import statements inside functions."""
    found = set()
    for file in files:
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom):
                        found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    ("stage", "targets"), [("calibrate", ["flexround.mini.tasks.digits:Digits"]), ("tabulate", []), ("fetch", [])]
)
def test_sources_are_what_the_process_imports(stage, targets):
    real = imported(f"flexround.stages.{stage}", *(target.partition(":")[0] for target in targets))
    listed = {ROOT / path for path in Plan(load_params("mini")).sources(stage, *targets)}
    assert not {path for path in real - listed if not empty(path)}, "imported, but an edit would not rerun the stage"
    late = set(source_files(*(name for name in imported_late(listed) if name.startswith("flexround."))))
    assert not listed - real - late, "an edit would rerun the stage for nothing"


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_depends_on_another(stage):
    files = source_files(f"flexround.stages.{stage}")
    assert {file.stem for file in files if file.parent.name == "stages"} - {"__init__"} == {stage, "cli"}


def test_every_stage_is_known_here():
    rules = "calibrate claims data evaluate fetch figure finetune paper reconstruct report select summary tabulate"
    by_hand = "plan records reference regress sentinels status stored verify"
    assert sorted(f"{rules} {by_hand}".split()) == STAGES
