"""The quick import of torchvision."""

import subprocess
import sys
import textwrap
import types

import pytest

from flexround.models import torchvision_light


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_light_import_leaves_the_compiler_out_and_usable():
    printed = python("""
        import sys
        from flexround.models.torchvision_light import torchvision
        assert "torch._dynamo" not in sys.modules and "torch._dynamo.utils" not in sys.modules
        import torch
        boxes = torch.tensor([[0, 0.0, 0.0, 4.0, 4.0]])
        pooled = torchvision.ops.roi_align(torch.ones(1, 1, 8, 8), boxes, 2)
        assert torch.equal(pooled, torch.ones(1, 1, 2, 2))
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        torch.optim.Adam([weight], lr=0.1).step()
        assert torch.allclose(weight, torch.full((2,), 0.9))
        import torch._dynamo.utils as real
        assert real.__file__
        predicate = torchvision.ops.roi_align.__globals__["is_compile_supported"]
        assert predicate("cpu") == real.is_compile_supported("cpu")
        print("done")
    """)
    assert printed == "done\n"


def test_light_import_keeps_a_loaded_compiler(monkeypatch):
    loaded = types.ModuleType("torch._dynamo.utils")
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    with torchvision_light._stand_in():
        assert sys.modules[loaded.__name__] is loaded
    assert sys.modules[loaded.__name__] is loaded


def test_light_import_cleans_up_after_a_failure(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    with pytest.raises(ImportError), torchvision_light._stand_in():
        raise ImportError
    assert "torch._dynamo.utils" not in sys.modules
