"""The compiler that is imported only when something is compiled."""

import subprocess
import sys
import textwrap

import pytest


def python(code):
    """Run code in a fresh interpreter and return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()


TRAINED = """
    import sys
    import torch
    from flexround import compiler
    compiler.defer()
    weight = torch.nn.Parameter(torch.ones(3))
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        optimizer = kind([weight], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    print(any(name.startswith("torch._dynamo.") for name in sys.modules), *weight.tolist())
"""


def test_optimizers_step_alike_without_it():
    quick = python(TRAINED)
    plain = python(TRAINED.replace("compiler.defer()", "import torch._dynamo"))
    assert quick == ["False", *plain[1:]]
    assert plain[0] == "True"


@pytest.mark.parametrize(
    "use",
    [
        "print(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item())",
        "import torch._dynamo.utils; print(torch._dynamo.utils.counters is not None and 2.0)",
        "from torch._dynamo import config; print(config.cache_size_limit is not None and 2.0)",
        "import torch._dynamo; print(torch._dynamo.config is not None and 2.0)",
        "print(torch._dynamo.eval_frame.OptimizedModule is not None and 2.0)",
    ],
)
def test_who_needs_it_gets_the_real_one(use):
    printed = python(
        TRAINED + f"    {use}\n    assert sys.modules['torch._dynamo'] is torch._dynamo and torch._dynamo.__file__\n"
    )
    assert printed[-1] == "2.0"


def test_a_loaded_compiler_stays():
    assert python("""
        import sys, torch, torch._dynamo
        real = torch._dynamo
        from flexround import compiler
        compiler.defer()
        print(sys.modules["torch._dynamo"] is real)
    """) == ["True"]
