"""GLUE, SQuAD and the pretraining corpus through the stages, on a tiny scale."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import stage_calls
import torch
from safetensors.numpy import load_file

from flexround.errors import InputError, SettingsError
from flexround.io import artifacts
from flexround.models import build, tokenizer_files
from flexround.reconstruct import codes
from flexround.settings import layout
from flexround.settings.load import load_params
from flexround.stages import finetune
from flexround.tasks import protocol
from flexround.tasks.text import task as text
from flexround.tasks.text import training as text_training
from synthetic import files

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


METRICS = {
    "glue-rte": {"acc": 60},
    "glue-stsb": {"pearson": 60, "spearman": 60},
    "glue-mnli": {"acc_matched": 60, "acc_mismatched": 60},
    "squad": {"f1": 40, "em": 40},
}


@pytest.mark.parametrize(
    ("task", "checkpoint"),
    [("glue-rte", "bert-base"), ("glue-stsb", "gpt-neo-125m"), ("glue-mnli", "gpt-neo-125m"), ("squad", "bert-base")],
)
def test_a_task_from_its_data_to_a_quantized_evaluation(chain, task, checkpoint):
    found = chain.metrics(task, checkpoint)
    assert found["n_examples"] == METRICS[task]
    assert list(found["metrics"]) == sorted(METRICS[task])
    out = chain.quantized(task, checkpoint, "q-flexround-w8a8")
    stored = {key: one for path in codes.files(out) for key, one in codes.read(path).quantized.items()}
    weights = [key for key in stored if key.startswith("weight/")]
    sites = [key for key in stored if not key.startswith("weight/")]
    assert (len(weights), len(sites)) == (12, 8), "six linears and four inputs in each of two layers"
    assert all(one.grid.qmax - one.grid.qmin == 255 for one in stored.values())
    quantized = chain.metrics(task, checkpoint, "q-flexround-w8a8")
    for metric in METRICS[task]:
        assert abs(quantized["metrics"][metric] - found["metrics"][metric]) < 12
    shutil.rmtree(chain.weights(task, checkpoint))  # the quantized network stands alone
    run = chain.run(task, checkpoint, "q-flexround-w8a8")
    again = chain.do("evaluate", run, out=layout.evaluated_dir(run), again=True)
    assert not (chain.root / layout.checkpoint_dir("text", task, checkpoint)).exists()
    assert artifacts.read_json(again / "metrics.json")["metrics"] == quantized["metrics"]


def test_the_evaluation_is_that_of_a_plain_loop(chain):
    """One example at a time, without padding."""
    stored = load_file(chain.evaluated("glue-cola", "bert-base") / "predictions.safetensors")
    model, tokenizer = (
        chain.model("glue-cola", "bert-base"),
        tokenizer_files.load(chain.weights("glue-cola", "bert-base") / "tokenizer.json"),
    )
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
    before, params = chain.model("corpus-masked", "bert-base"), load_params(SCALE)
    head = protocol.named(params.scale, "glue-rte").head
    model = build.architecture(params.checkpoint("bert-base"), head)
    fresh = model.classifier.weight.detach().clone()
    weights = chain.weights("corpus-masked", "bert-base").relative_to(chain.root)
    with contextlib.chdir(chain.root):
        finetune.take_over(model, weights, chain.root / "taken")
    for name, value in before.bert.named_parameters():
        torch.testing.assert_close(model.bert.get_parameter(name), value, rtol=0, atol=0)
    torch.testing.assert_close(model.classifier.weight, fresh)
    assert (chain.root / "taken/tokenizer.json").exists()


def test_calibration_rows_are_training_rows_that_are_not_held_out(chain):
    stored = load_file(chain.samples("glue-rte", 64) / "samples.safetensors")
    rows = text.read_rows(chain.data("glue-rte"), "train")
    task = chain.task("glue-rte")
    drawn = [json.loads(line) for line in stored["examples"].tobytes().splitlines()]
    assert drawn == [rows[index] for index in stored["indices"]]
    _, heldout = task.parts(len(rows))
    assert len(heldout) == 50
    assert not set(stored["indices"]) & set(heldout)
    assert chain.held_out("glue-rte", "bert-base").n_examples == {"acc": 50}


def test_a_task_without_held_out_rows_says_so(chain):
    with pytest.raises(SettingsError, match="no training rows are held out"):
        chain.held_out("glue-mnli", "bert-base")


def test_the_best_on_the_held_out_rows_is_chosen(chain):
    manifest = artifacts.read_manifest(chain.quantized("glue-rte", "bert-base", "q-flexround-w8a8-tuned"))
    chosen = manifest["selected"]
    assert chosen["heldout"].keys() == set(chain.params.recipe("q-flexround-w8a8-tuned").select)
    assert chosen["heldout"][chosen["recipe"]] == max(chosen["heldout"].values())
    assert manifest["run"]["recipe"] == "q-flexround-w8a8-tuned"
    best = chain.quantized("glue-rte", "bert-base", chosen["recipe"])
    assert manifest["files"] == artifacts.read_manifest(best)["files"]
    evaluated = (chain.metrics("glue-rte", "bert-base", name) for name in (manifest["run"]["recipe"], chosen["recipe"]))
    assert len({found["metrics"]["acc"] for found in evaluated}) == 1


# training


def test_the_learning_rate_falls_linearly_after_the_warmup():
    rates = [text_training.rate(step, 10, 0.2) for step in range(10)]
    assert rates == pytest.approx([0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert text_training.rate(0, 4, 0.0) == 1


def test_biases_and_norms_do_not_decay(chain):
    model = chain.model("glue-rte", "bert-base")
    decayed, rest = (group["params"] for group in text_training.decay_groups(model, 0.01))
    names = {id(p): name for name, p in model.named_parameters()}
    assert all("bias" not in names[id(p)] and "LayerNorm" not in names[id(p)] for p in decayed)
    assert all("bias" in names[id(p)] or "LayerNorm" in names[id(p)] for p in rest)
    assert len(decayed) + len(rest) == len(names)


@pytest.mark.parametrize(("count", "batch", "steps"), [(10, 4, 6), (8, 4, 4), (3, 4, 2)])
def test_the_last_batch_is_kept_and_training_is_reproducible(count, batch, steps):
    settings = text_training.TrainSettings(epochs=2, batch=batch, lr=0.01)
    arrays = {"x": np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)}
    sizes, weights = [], []
    for _ in range(2):
        model = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Dropout(0.5))
        torch.nn.init.ones_(model[0].weight)
        torch.nn.init.zeros_(model[0].bias)

        def loss(model, batch, _):
            sizes.append(len(batch["x"]))
            return model(batch["x"]).square().mean()

        state = torch.random.get_rng_state()
        facts = text_training.train(model, arrays, loss, settings)
        assert torch.equal(state, torch.random.get_rng_state())
        assert facts["steps"] == steps
        weights.append(model[0].weight.detach().clone())
    assert sum(sizes) == 2 * 2 * count
    assert torch.equal(*weights)
    assert not model.training


# what is refused


def rte(place, **options):
    """Return a task of 30 training rows, which lie in ``place``."""
    task = protocol.build(load_params(SCALE).scale.tasks["glue-rte"].model_copy(update={"options": options}))
    files.glue(place / "glue", "rte", 30, 10)
    task.prepare(place, place)
    return task


def test_inputs_longer_than_the_model_are_refused_before_training(chain, tmp_path):
    task = rte(tmp_path, name="rte", max_length=64)
    model, weights = chain.model("glue-cola", "bert-base"), chain.weights("corpus-masked", "bert-base")
    with pytest.raises(InputError, match="length=64: the model has 48 positions"):
        task.finetune(model, tmp_path, {"epochs": 1, "batch": 8, "lr": 1e-3}, weights)


def test_more_held_out_rows_than_there_are_is_refused(tmp_path):
    task = rte(tmp_path, name="rte", max_length=32, heldout=30)
    with pytest.raises(InputError, match="heldout=30: there are only 30 training rows"):
        task.calibration(tmp_path, 5, 0)
