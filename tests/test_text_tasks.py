"""GLUE, SQuAD and the pretraining corpus through the stages, on a tiny scale."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import stage_calls
import tiny
import torch
from safetensors.numpy import load_file
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer

from flexround.io import artifacts
from flexround.models import build, tokenizer_files
from flexround.reconstruct import codes
from flexround.settings import layout
from flexround.stages import finetune
from flexround.tasks import text, text_training

SCALE = str(Path(__file__).with_name("text_scale.yaml"))


class Chain(stage_calls.Work):
    """Everything made once for all tests here."""

    def held_out(self, task, checkpoint):
        """The evaluation of full precision on the training rows held out."""
        data, weights, cpu = self.data(task), self.weights(task, checkpoint), torch.device("cpu")
        return self.task(task).evaluate(self.model(task, checkpoint), data, cpu, 250, weights, "heldout")


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return Chain(SCALE, tmp_path_factory.mktemp("text"))


def test_squad_from_its_data_to_a_quantized_evaluation(chain):
    names = ("squad", "bert-base", "q-flexround-w8a8")
    found, out = chain.metrics(*names[:2]), chain.quantized(*names)
    assert found["n_examples"] == {"f1": 40, "em": 40}
    stored = {key: one for path in codes.files(out) for key, one in codes.read(path).quantized.items()}
    weights = [key for key in stored if key.startswith("weight/")]
    assert (len(weights), len(stored)) == (12, 12 + 8), "six linears and four inputs in each of two layers"
    assert all(one.grid.qmax - one.grid.qmin == 255 for one in stored.values())
    quantized = chain.metrics(*names)["metrics"]
    assert quantized == pytest.approx(found["metrics"], abs=12)
    shutil.rmtree(chain.weights("squad", "bert-base"))  # the quantized network stands alone
    run = chain.run(*names)
    again = chain.do("evaluate", run, out=layout.evaluated_dir(run), again=True)
    assert not (chain.root / layout.checkpoint_dir("text", "squad", "bert-base")).exists()
    assert artifacts.read_json(again / "metrics.json")["metrics"] == quantized


def test_the_evaluation_is_that_of_a_plain_loop(chain):
    """One example at a time, without padding."""
    stored = load_file(chain.evaluated("glue-cola", "bert-base") / "predictions.safetensors")
    model = chain.model("glue-cola", "bert-base")
    tokenizer = tokenizer_files.load(chain.weights("glue-cola", "bert-base") / "tokenizer.json")
    tokenizer.no_padding()
    rows = text.read_rows(chain.data("glue-cola"), "validation")
    predicted = []
    with torch.no_grad():
        for row in rows:
            found = tokenizer.encode(row["sentence"])
            predicted.append(int(model(input_ids=torch.tensor([found.ids[:32]])).logits.argmax()))
    np.testing.assert_array_equal(stored["predictions/validation/predicted"], predicted)
    np.testing.assert_array_equal(stored["predictions/validation/label"], [row["label"] for row in rows])


def test_the_body_is_the_pretrained_one_and_the_head_is_new(chain):
    before = chain.model("corpus-masked", "bert-base")
    model = build.architecture(chain.params.checkpoint("bert-base"), chain.task("glue-rte").head)
    fresh = model.classifier.weight.detach().clone()
    weights = chain.weights("corpus-masked", "bert-base").relative_to(chain.root)
    with contextlib.chdir(chain.root):
        finetune.take_over(model, weights, chain.root / "taken")
    assert all(torch.equal(value, model.bert.get_parameter(name)) for name, value in before.bert.named_parameters())
    assert torch.equal(model.classifier.weight, fresh)
    assert (chain.root / "taken/tokenizer.json").exists()


def test_calibration_rows_are_not_held_out(chain):
    stored = load_file(chain.samples("glue-rte", 64) / "samples.safetensors")
    rows = text.read_rows(chain.data("glue-rte"), "train")
    task = chain.task("glue-rte")
    drawn = [json.loads(line) for line in stored["examples"].tobytes().splitlines()]
    assert drawn == [rows[index] for index in stored["indices"]]
    _, heldout = task.parts(len(rows))
    assert len(heldout) == 50
    assert not set(stored["indices"]) & set(heldout)
    assert chain.held_out("glue-rte", "bert-base").n_examples == {"acc": 50}
    for task, metrics in (("glue-mnli", ("acc_matched", "acc_mismatched")), ("glue-stsb", ("pearson", "spearman"))):
        assert chain.metrics(task, "gpt-neo-125m")["n_examples"] == dict.fromkeys(metrics, 60)


def test_the_best_on_the_held_out_rows_is_chosen(chain):
    manifest = artifacts.read_manifest(chain.quantized("glue-rte", "bert-base", "q-flexround-w8a8-tuned"))
    chosen = manifest["selected"]
    assert chosen["heldout"].keys() == set(chain.params.recipe("q-flexround-w8a8-tuned").select)
    assert chosen["heldout"][chosen["recipe"]] == max(chosen["heldout"].values())
    best = chain.quantized("glue-rte", "bert-base", chosen["recipe"])
    assert manifest["files"] == artifacts.read_manifest(best)["files"]


# training


def test_rates_and_decay_are_those_of_the_example_scripts(chain):
    rates, settings = [], text_training.TrainSettings(epochs=2, batch=1, lr=1, warmup=0.2)
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    arrays = {"x": np.ones((5, 1), np.float32)}
    text_training.train(torch.nn.Linear(1, 1), arrays, lambda model, batch, _: model(batch["x"]).sum(), settings)
    hook.remove()
    assert rates == pytest.approx([0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    model = chain.model("glue-rte", "bert-base")
    decayed, rest = ({id(p) for p in group["params"]} for group in text_training.decay_groups(model, 0.01))
    free = {id(p) for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name}
    assert rest == free
    assert decayed == {id(p) for p in model.parameters()} - free
    llama = tiny.make("llama")  # whose norms are no class of torch's
    decayed, _ = ({id(p) for p in group["params"]} for group in text_training.decay_groups(llama, 0.01))
    named = set(Trainer.get_decay_parameter_names(None, llama))
    assert decayed == {id(p) for name, p in llama.named_parameters() if name in named}
