"""Common-sense reasoning: lm-eval's answers against plain loops, perplexities, and calibration on C4."""

import functools
import math
import random
from types import SimpleNamespace

import lm_eval
import numpy as np
import pytest
import tiny
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from flexround.io import artifacts
from flexround.tasks import harness, text
from flexround.tasks.commonsense import Commonsense
from flexround.tasks.options import CommonsenseOptions
from flexround.tasks.questions import KINDS, answered
from synthetic import choices as mini
from synthetic import files, tokenizers

CPU = torch.device("cpu")
SMALL = {"documents": 30, "shots": (0, 2), "block_size": 32, "test_block": 48}
QUESTIONS = 6


@functools.cache
def trained():
    lines = [line for part in mini.sheets(500, 0, answered) for line in part]
    return tokenizers.train([line.text + line.answer for line in lines], "bpe-begin", 400).to_str()


def tokenizer():
    """Return a small tokenizer that puts token 0 before each text, as LLaMA's does."""
    return Tokenizer.from_str(trained())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a random model, its tokenizer and the mini task's data."""
    data = tmp_path_factory.mktemp("data")
    files.commonsense(data / "files", 30, 6, QUESTIONS, 7)
    build().prepare(data, data / "files")
    artifacts.write_text(data / "network/tokenizer.json", tokenizer().to_str())
    model = tiny.make("gpt_neo", vocab_size=400, max_position_embeddings=512, initializer_range=0.3)
    return SimpleNamespace(model=model, network=data / "network", data=data)


@pytest.fixture(scope="module")
def found(place):
    """Evaluate it as each version of lm-eval asks."""
    return {version: evaluated(place, prompts=version) for version in ("0.3", "0.4")}


def evaluated(place, **options):
    return build(**options).evaluate(place.model, place.data, CPU, 16, place.network, "validation")


def build(**options):
    return Commonsense(CommonsenseOptions(**(SMALL | options)))


def likelihood(place, context, continuation):
    """Return the log likelihood of token ids after others by a plain forward pass."""
    with torch.no_grad():
        logits = place.model(torch.tensor([context + continuation])).logits[0].double().log_softmax(1)
    places = range(len(context) - 1, len(context) + len(continuation) - 1)
    return sum(logits[at, token].item() for at, token in zip(places, continuation, strict=True))


def plain(model):
    """Return a model as lm-eval wraps it, with the tokenizer that begins texts."""
    ends = dict.fromkeys(("pad_token", "bos_token"), "<|endoftext|>")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **ends)
    return HFLM(pretrained=model, tokenizer=wrapped, batch_size=1, logits_cache=False)


def pairs(posed):
    """Return each choice's context and continuation."""
    if "continuation" in posed:
        return [(choice, f" {posed['continuation']}") for choice in posed["choices"]]
    return [(posed["query"], f" {choice}") for choice in posed["choices"]]


def instances(rows):
    """Return what lm-eval asks of posed questions."""
    asked = ((number, pair) for number, posed in enumerate(rows) for pair in pairs(posed))
    common = {"request_type": "loglikelihood", "doc": {}, "idx": 0}
    return [Instance(**common, arguments=pair, metadata=("one", number, 1)) for number, pair in asked]


def scores(place, name, examples, encode):
    """Return ``acc`` and ``acc_norm`` of all questions of a data set."""
    train, found = text.read_rows(place.data, f"{name}-train"), []
    for row, chosen in zip(text.read_rows(place.data, name), examples, strict=True):
        posed = KINDS[name].pose(row)
        before = "".join("".join(answered(name, train[index])[0]) + "\n\n" for index in chosen)
        values = np.array([likelihood(place, *encode(before + first, second)) for first, second in pairs(posed)])
        lengths = np.array([len(choice) for choice in posed["choices"]])
        found.append([values.argmax() == posed["gold"], (values / lengths).argmax() == posed["gold"]])
    return np.array(found).T


@pytest.mark.parametrize("version", ["0.3", "0.4"])
def test_answers_are_those_of_plain_loops(place, found, version):
    coder = tokenizer()

    def apart(context, continuation):
        return [coder.encode(part, add_special_tokens=False).ids for part in (context, continuation)]

    def together(context, continuation):
        ids, length = coder.encode(context + continuation).ids, len(coder.encode(context).ids)
        return ids[:length], ids[length:]

    found = found[version]
    for name in KINDS:
        for metric, shots in ((name, 0), (f"{name}_2", 2)):
            examples = found.predictions[f"{metric}/examples"] if shots else [[]] * QUESTIONS
            acc, acc_norm = scores(place, name, examples, apart if version == "0.3" else together)
            np.testing.assert_array_equal(found.predictions[f"{metric}/acc"], acc)
            if KINDS[name].metric == "acc_norm":
                np.testing.assert_array_equal(found.predictions[f"{metric}/acc_norm"], acc_norm)
                acc = acc_norm
            assert found.metrics[metric] == pytest.approx(100 * acc.mean())
            assert found.n_examples[metric] == QUESTIONS
    assert (found.higher_is_better["boolq_2"], found.higher_is_better["ppl"]) == (True, False)


@pytest.fixture
def llama():
    """Make a random LLaMA that is sure of itself."""
    sizes = {"vocab_size": 400, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    return tiny.make("llama", max_position_embeddings=512, initializer_range=0.3, **sizes).eval()


@pytest.mark.parametrize("positions", [512, 20])
def test_a_shared_context_changes_nothing_but_rounding(place, llama, positions):
    llama.config.max_position_embeddings = positions  # longer requests lose their beginning
    asked = instances(KINDS[name].pose(row) for name in KINDS for row in text.read_rows(place.data, name))
    fast = harness.VersionedModel(llama, tokenizer(), "0.4", 16).loglikelihood(asked)
    slow = plain(llama).loglikelihood(asked, disable_tqdm=True)
    np.testing.assert_allclose([value for value, _ in fast], [value for value, _ in slow], rtol=1e-4, atol=1e-3)
    assert [greedy for _, greedy in fast] == [greedy for _, greedy in slow]


def test_the_definitions_serve_lm_evals_own_command(place, found, tmp_path, monkeypatch):
    """They name the data of the paper's scale, seen from the project's directory."""
    (tmp_path / "results/paper/data").mkdir(parents=True)
    (tmp_path / "results/paper/data/commonsense").symlink_to(place.data)
    monkeypatch.chdir(tmp_path)
    manager = TaskManager(include_path=str(harness.DEFINITIONS), include_defaults=False)
    asked = lm_eval.simple_evaluate(
        plain(place.model), tasks=list(KINDS), num_fewshot=0, task_manager=manager, bootstrap_iters=0
    )
    for name, kind in KINDS.items():
        value = asked["results"][name][f"{kind.metric},none"]
        assert 100 * value == pytest.approx(found["0.4"].metrics[name]), name


def test_examples_are_drawn_as_each_version_of_lm_eval_does():
    rnd, train, shuffled = random.Random(42), range(9), list(range(7))
    rnd.shuffle(shuffled)
    old = {question: rnd.sample(train, 3) for question in shuffled}
    assert harness.draw(7, 9, 3, "0.3").tolist() == [old[question] for question in range(7)]
    rnd = random.Random(1234)
    assert harness.draw(7, 9, 3, "0.4").tolist() == [rnd.sample(train, 3) for _ in range(7)]


def test_perplexities_are_those_of_plain_loops(place, found):
    coder, found = tokenizer(), found["0.3"]
    coder.no_padding()
    rows = [row["text"] for row in text.read_rows(place.data, "validation")]
    joined = "\n\n".join(row["text"] for row in text.read_rows(place.data, "test"))
    for metric, texts, size in (("ppl", rows, 32), ("ppl_48", [joined], 48)):
        ids = [token for one in texts for token in coder.encode(one).ids]
        blocks = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
        losses = [-likelihood(place, block[:1], block[1:]) / (size - 1) for block in blocks]
        assert found.metrics[metric] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
        assert found.n_examples[metric] == len(blocks)
        np.testing.assert_allclose(found.predictions[f"{metric}/loss"], losses, rtol=1e-4)


# calibration


def test_the_release_calibrates_on_the_first_blocks(place, monkeypatch):
    monkeypatch.setattr("flexround.tasks.commonsense.JOINED", 12)
    task, coder, blocks = build(calibration="release"), tokenizer(), []
    coder.no_padding()
    documents = [row["text"] for row in text.read_rows(place.data, "train")]
    for start in range(0, len(documents), 12):
        ids = [token for one in documents[start : start + 12] for token in coder.encode(one).ids]
        blocks += [ids[at : at + 32] for at in range(0, len(ids) - 31, 32)]
    inputs = task.inputs(task.calibration(place.data, 20, 0), place.network)
    assert inputs.x.shape == (20, *task.input_shape)
    assert inputs.x[:, 0].tolist() == blocks[:20]
    assert not inputs.x[:, 1].any()
