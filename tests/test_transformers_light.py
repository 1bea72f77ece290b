"""The quick import of transformers: nothing slow is loaded, nothing differs, nothing stays behind."""

import subprocess
import sys
import textwrap
from types import ModuleType

import pytest
import torch

from flexround.models import transformers_light

MODELS = """
    import torch
    torch.manual_seed(0)
    tokens = torch.randint(1, 60, (3, 12))
    mask = torch.arange(12) < torch.tensor([[12], [7], [3]])
    small = dict(vocab_size=60, hidden_size=16, max_position_embeddings=16, pad_token_id=0)
    b = bert.BertConfig(num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **small)
    g = neo.GPTNeoConfig(
        num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=4, **small
    )
    kinds = (
        (bert.BertForSequenceClassification, b),
        (bert.BertForQuestionAnswering, b),
        (bert.BertForMaskedLM, b),
        (neo.GPTNeoForSequenceClassification, g),
        (neo.GPTNeoForCausalLM, g),
    )
    for kind, config in kinds:
        model = kind(config).eval()
        output = model(tokens, attention_mask=mask, labels=None)
        values = output.start_logits if "start_logits" in output else output.logits
        print(kind.__module__, kind.__name__, values.double().sum().item().hex(), values.flatten()[0].item().hex())
    ids = neo.GPTNeoForCausalLM(g).eval().generate(tokens[:1], max_new_tokens=3, do_sample=False)
    print(ids.tolist())
"""


LIGHT = """
    import sys
    import torch
    from flexround.models import transformers_light
    before = set(sys.modules)
    bert, neo = transformers_light.load("bert"), transformers_light.load("gpt_neo")
    # Nothing slow, and nothing of these that could have kept a stand-in; the compiler is deferred.
    new = set(sys.modules) - before - {"torch._dynamo"}
    print([name for name in new if name.split(".")[0] in ("torch", "torchvision", "scipy", "sympy")])
"""

# What the stand-ins stood for, once the models have run.
LATER = """
    import transformers.masking_utils as masking
    from transformers.loss import loss_for_object_detection as loss
    print(loss.linear_sum_assignment([[1, 2], [2, 5]])[1].tolist())
    block = masking.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
    print(type(block).__module__, isinstance(torch.ones(1), masking.BlockMask))

    import torch._dynamo, torch.export, scipy.optimize, transformers.processing_utils, transformers.image_transforms
    print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item(), torch.distributed.is_available())
    print(type(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))).__name__)
    print([isinstance(sys.modules[name], transformers_light._StandIn) for name in transformers_light._STAND_INS])

    kinds[0][0](b).save_pretrained(sys.argv[1])
    from transformers import AutoModelForSequenceClassification as Auto
    one, two = (kind.from_pretrained(sys.argv[1], local_files_only=True) for kind in (kinds[0][0], Auto))
    print(type(two) is type(one) and all(map(torch.equal, one.state_dict().values(), two.state_dict().values())))
"""


def python(*parts: str, argument: str = "") -> str:
    """Run code in a fresh interpreter and return what it printed."""
    command = [sys.executable, "-c", "".join(map(textwrap.dedent, parts)), argument]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_quick_import_differs_in_nothing_but_time(tmp_path):
    plain = python(
        """
        import transformers.models.bert.modeling_bert as bert
        import transformers.models.gpt_neo.modeling_gpt_neo as neo
        """,
        MODELS,
    )
    light = python(LIGHT, MODELS, LATER, argument=str(tmp_path)).splitlines()
    assert light[0] == "[]"
    assert light[1:7] == plain.splitlines()
    assert light[7:] == [
        "[1, 0]",
        "torch.nn.attention.flex_attention False",
        "2.0 True",
        "ExportedProgram",
        str([False] * len(transformers_light._STAND_INS)),
        "True",
    ]


@pytest.mark.parametrize("name", ["opt", "gpt2", "llama"])
def test_the_other_models_are_imported_quickly_too(name):
    found = python(f"""
        import logging, sys
        logging.basicConfig(level="INFO", stream=sys.stdout)
        import torch
        from flexround.models import transformers_light
        before = set(sys.modules)
        transformers_light.load("{name}")
        print([m for m in set(sys.modules) - before if m.split(".")[0] in ("torchvision", "scipy", "sympy")])
    """)
    assert found == "[]\n"


def test_falls_back_to_the_plain_import(monkeypatch):
    def fail():
        sys.modules["transformers.half_imported"] = ModuleType("half")
        raise AttributeError("no such name in this version")

    monkeypatch.setattr(transformers_light, "_bare_packages", fail)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert transformers_light.load("opt").OPTForCausalLM.__name__ == "OPTForCausalLM"
    assert "transformers.half_imported" not in sys.modules
    assert not any(isinstance(module, transformers_light._StandIn) for module in sys.modules.values())
    assert torch.distributed.is_available()


def test_distributed_processes_import_plainly(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(transformers_light, "_stand_ins", lambda: pytest.fail("took the quick way"))
    assert transformers_light.load("gpt2").GPT2LMHeadModel.__name__ == "GPT2LMHeadModel"


def test_loaded_modules_are_not_replaced(monkeypatch):
    loaded = ModuleType("scipy.optimize")
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    with transformers_light._stand_ins():
        assert sys.modules[loaded.__name__] is loaded
    assert sys.modules[loaded.__name__] is loaded
