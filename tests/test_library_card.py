"""Model cards: their header, their code, their numbers, and whose they are."""

import contextlib
import re

import pytest
import torch
import yaml
from own_networks import FEW, Pictures, llama, made, pictures, words

import flexround
from flexround.library import card

SYMMETRIC = {"w_scheme": "symmetric", "w_granularity": "group", "group_size": 8}


def read(directory):
    """Return the header of a card, its text and its code."""
    header, text = (directory / "README.md").read_text().removeprefix("---\n").split("\n---\n", 1)
    return yaml.safe_load(header), text, re.search(r"```python\n(.*?)```", text, re.S)[1]


@pytest.mark.parametrize("kind", ["save", "compressed-tensors", "torch"])
def test_a_card_loads_its_directory_and_tells_how_it_was_made(tmp_path, kind):
    model = llama()
    model.config._name_or_path = "someone/a-llama"
    quantized = flexround.quantize(model, words(), "b-flexround-w4", **FEW | SYMMETRIC)
    out = tmp_path / "out"
    quantized.save(out) if kind == "save" else quantized.export(kind, out)
    header, text, code = read(out)
    with contextlib.chdir(out):
        exec(code, found := {"model": llama()})
    if kind == "torch":
        found["model"] = llama()
        found["model"].load_state_dict(found["state"])
    again = found.get("quantized", found["model"])
    torch.testing.assert_close(again(words()).logits, quantized(words()).logits, rtol=0, atol=1e-5)
    library = {"save": "flexround", "compressed-tensors": "transformers"}.get(kind)
    assert header.pop("library_name", None) == library
    assert header.pop("tags")[:2] == ["flexround", "quantized"]
    origin = {"base_model": "someone/a-llama", "base_model_relation": "quantized"}
    assert header == origin | {"pipeline_tag": "text-generation"}
    assert "# someone/a-llama, quantized to W4\n" in text
    grid = "weights: one grid for each | group | given"
    for row in ("iterations of a block | 4 | given", grid, "shape | (16, 12) |"):
        assert row in text
    assert "| not learned | in floating point: lm_head.weight |" in text
    for record in quantized.report:
        errors = f"{record['error_rtn']:.3g} | {record['error_hard']:.3g}"
        assert f"| {record['block']} | weights | 4 | {errors} |" in text


def test_a_card_tells_all_that_a_scale_of_one_s_own_decides(tmp_path):
    mine = tmp_path / "mine.yaml"
    rule = 'hyper: [{when: {task: imagenet}, set: {iters: 3, keep_probability: 0.25}, source: "tried at home"}]'
    mine.write_text(f"name: mine\nextends: short\ndescription: of one's own\n{rule}\n")
    quantized = flexround.quantize(made(Pictures), pictures(8), "q-flexround-w4a4", scale=str(mine), progress=False)
    assert quantized.report[0]["iterations"] == 3
    text = read(quantized.save(tmp_path / "out"))[1]
    for row in ("| 3 | tried at home |", "| 0.25 | tried at home |"):
        assert row in text


SOURCES = {  # where a network comes from, and how its card names it
    "/data/of/someone/a-llama": "a-llama",
    "a: [\n---\nlicense: mit": None,
    "": None,
}


def test_a_card_names_a_network_and_no_path(tmp_path):
    quantized = flexround.quantize(made(Pictures), pictures(), "b-flexround-w4a4", **FEW)
    for source, name in SOURCES.items():
        origin = card.origin("own", "Down|Up\n", source, pictures(), ["x"])
        facts = quantized._facts.model_copy(update={"origin": origin})
        card.write(tmp_path, card.SAVED, facts, quantized.report, quantized.model)
        header, text, _ = read(tmp_path)
        assert header.get("base_model") == name
        assert header.keys() - {"base_model", "base_model_relation"} == {"library_name", "tags"}
    assert r"| rounding | Down\|Up  | recipe own |" in text
    assert re.search(r"\| stage.0 \| steps \| 2 \| \d", text), "both phases"
    assert "| activations: kind of grid | symmetric |" in text
    assert "| bits of the first layer | 8 |" in text
