"""Tables 13, 14, 17, 18 and LLaMA: what is used, and that it is what the paper prints."""

import csv
import io

import pytest
from table_runs import SETTINGS, loaded, settings_csv

from flexround.errors import SettingsError
from flexround.jobs.tables import settings_of
from flexround.results import grid, paper_numbers
from flexround.results.render import html, latex, terminal
from flexround.settings.layout import Run
from flexround.settings.params import hyper
from flexround.settings.plan import Plan
from flexround.settings.schema import HyperRule, TrainRule
from flexround.tasks.options import AdapterTrainSettings

PAPER = loaded("paper")


def changed(**updates):
    """Return the settings of the paper's scale with other fields of the scale."""
    return PAPER._replace(scale=PAPER.scale.model_copy(update=updates))


def trained(when, values):
    """Return the settings of the paper's scale with one more rule of training."""
    return changed(train=(*PAPER.scale.train, TrainRule(when=when, set=values, source="a test")))


def entries(number, params):
    return list(csv.DictReader(settings_csv(number, params).splitlines()))


@pytest.mark.parametrize("number", SETTINGS)
def test_the_papers_scale_uses_what_the_paper_prints(number):
    found = entries(number, PAPER)
    assert {(line["status"], line["value"] == line["published"]) for line in found} == {("reproduced", True)}
    keys = [entry.key for entry in grid.load(io.StringIO(settings_csv(number, PAPER))).entries]
    assert keys == [key for key in paper_numbers.load() if key.table == number]


def test_reconstruction_settings_come_from_the_rules():
    slower = HyperRule(when={"task": "ptb", "checkpoint": "opt-1.3b"}, set={"lr": 2e-5}, source="a test")
    params = changed(hyper=(*PAPER.scale.hyper, slower))
    before, after = entries(18, PAPER), entries(18, params)
    differing = [(b, a) for b, a in zip(before, after, strict=True) if a != b]
    assert [(a["section"], a["column"], b["value"], a["value"], a["status"]) for b, a in differing] == [
        ("PTB", "OPT-1.3B", "3e-5", "2e-5", "off")
    ]
    assert {line["recipe"] for line in after} == {"q-flexround-w8a8"}
    assert settings_of(Plan(PAPER), SETTINGS[17]) == settings_of(Plan(params), SETTINGS[17])


@pytest.mark.parametrize(
    ("number", "when", "values", "message"),
    [
        (14, {"task": "glue-rte"}, {"lr": 1e-5}, "prints one train.lr for all: .*1e-05"),
        (13, {"task": "squad"}, {"lr": "2e-5"}, "train settings of squad/bert-base: lr = '2e-5'"),
    ],
)
def test_one_value_printed_for_several_must_be_theirs(number, when, values, message):
    with pytest.raises(SettingsError, match=message):
        entries(number, trained(when, values))


SECTIONS = r"""
\midrule
 & Learning rate & 5e-3 & 4e-4 & 4e-3 & 3e-5 & 7e-6 & 1e-5 \\
WikiText2 & Batch size & 32 & 16 & 8 & 32 & 16 & 8 \\
\midrule
 & Learning rate & 5e-3 & 7e-3 & 7e-3 & 5e-5 & 3e-5 & 8e-6 \\
PTB & Batch size & 32 & 16 & 8 & 32 & 16 & 8 \\
"""
SHARED = r"Weight Decay & \multicolumn{5}{c}{0.01} \\"  # what all models share is printed once


@pytest.mark.parametrize(("number", "part", "said"), [(14, SHARED, "Epoch"), (18, SECTIONS, "WikiText2")])
def test_settings_are_shown_in_the_papers_form(number, part, said):
    shown = grid.load(io.StringIO(settings_csv(number, PAPER))), SETTINGS[number], PAPER.scale
    assert part in latex.render(*shown)
    assert said in html.render(*shown)
    assert said in terminal.render(*shown)


# the appendices on LLaMA, which give their settings in the text

SIZES = ("llama-7b", "llama-13b", "llama-33b")
RECONSTRUCTION = {  # batch and learning rate of FlexRound for the three sizes
    ("commonsense", "q-flexround-w8a8"): [(4, 3e-3), (4, 3e-3), (2, 1e-3)],
    ("commonsense", "b-flexround-w4"): [(4, 2e-4), (4, 1e-4), (2, 1e-4)],
    ("wikitext2-lora", "q-flexround-w8a8"): [(4, 5e-3), (4, 2e-3), (2, 2e-3)],
    ("ptb-lora", "q-flexround-w8a8"): [(4, 2e-3), (4, 1e-3), (2, 3e-3)],
    ("wikitext2-lora", "b-flexround-w4"): [(4, 5e-4), (4, 5e-4), (2, 2e-4)],
    ("ptb-lora", "b-flexround-w4"): [(4, 5e-4), (4, 5e-4), (2, 1e-3)],
    ("wikitext2-lora", "b-flexround-w3"): [(4, 3e-4), (4, 3e-4), (2, 3e-4)],
    ("ptb-lora", "b-flexround-w3"): [(4, 7e-4), (4, 6e-4), (2, 6e-4)],
}
LORA_RATES = {"wikitext2-lora": (1e-4, 2e-4, 4e-5), "ptb-lora": (5e-4, 4e-4, 6e-4)}


@pytest.mark.parametrize(("task", "recipe"), RECONSTRUCTION)
def test_llama_is_reconstructed_as_the_appendices_say(task, recipe):
    samples = 512 if task == "commonsense" else 256
    for checkpoint, (batch, lr) in zip(SIZES, RECONSTRUCTION[task, recipe], strict=True):
        for name, rate in ((recipe, lr), (recipe.replace("flexround", "adaround"), 1e-3)):
            found, sources = hyper(PAPER, Run("paper", task, checkpoint, name, 0))
            assert (found.batch, found.lr, found.samples, found.iters) == (batch, rate, samples, 5000)
            grids = (found.w_scheme, found.w_granularity, found.a_scheme)
            assert grids == ("asymmetric", "channel", "asymmetric")
            assert {found.stem_bits, found.head_bits, found.stem_output_bits, found.head_input_bits} == {"low"}
            assert found.keep_probability == (0.5 if recipe.startswith("q") else 1.0)
            assert sources["batch"].startswith("appendix on L")


@pytest.mark.parametrize("task", LORA_RATES)
def test_llama_is_fine_tuned_as_the_appendix_says(task):
    for checkpoint, rate in zip(SIZES, LORA_RATES[task], strict=True):
        settings = AdapterTrainSettings.model_validate(PAPER.train(task, checkpoint))
        assert (settings.lr, settings.batch, settings.epochs, settings.lora.rank) == (rate, 128, 15, 4)
    assert PAPER.train("commonsense", "llama-7b") is None


@pytest.mark.parametrize("name", ["LLaMA-7B", "LLaMA-13B", "LLaMA-33B"])
def test_the_gates_of_llama_hold_the_published_perplexities(name):
    places = {
        "commonsense": (19, name, "WikiText2"),
        "wikitext2-lora": (23, "WikiText2", name),
        "ptb-lora": (23, "PTB", name),
    }
    for task, place in places.items():
        gate, found = PAPER.gate(task, name.lower()), paper_numbers.load().items()
        (value,) = (v for k, v in found if (k.table, k.section, k.column) == place and k.method.startswith("Half"))
        assert gate.metric == "ppl"
        assert gate.options == ({"shots": []} if task == "commonsense" else {}), "no question is asked"
        room = 0.05 if task.endswith("lora") else 0.01
        assert (gate.min, gate.max) == (round((1 - room) * value, 2), round((1 + room) * value, 2))
