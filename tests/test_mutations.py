"""Numbers are the golden ones; a planted defect moves the number that watches for it."""

import csv
import dataclasses
import re
from collections import defaultdict

import golden
import numpy as np
import pytest

from flexround.quant import search
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.rounding import Axes
from flexround.reconstruct import optimise, phases
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.surgery import equalize, place, preprocess
from flexround.tasks.commonsense.choices import Kind
from flexround.tasks.language import task as language_modelling
from flexround.tasks.text import task as text
from flexround.tasks.webnlg import bleu

GOLDEN = defaultdict(dict)
for line in csv.DictReader(golden.FILE.read_text().splitlines()):
    tolerance = float(line["tolerance"])
    GOLDEN[line["name"].partition("/")[0]][line["name"]] = pytest.approx(float(line["value"]), abs=tolerance)


@pytest.mark.parametrize("probe", [*golden.PROBES])
def test_the_numbers_are_the_golden_ones(probe):
    assert golden.compute(probe) == GOLDEN[probe]


def instead(value):
    return lambda real: value


def last_argument(value):
    return lambda real: lambda *arguments: real(*arguments[:-1], value)


def without(name):
    def change(real):
        def init(self, *arguments, **options):
            real(self, *arguments, **options)
            setattr(self, name, None)

        return init

    return change


def dropped_to_zero(real):
    return lambda self, x, kept: real(self, x, None) * (1 if kept is None else kept)


def zero_point_off_by_one(real):
    def grid(x, scheme, *arguments):
        found = real(x, scheme, *arguments)
        return found if scheme.symmetric else dataclasses.replace(found, zero_point=found.zero_point + 1)

    return grid


def s1_at_the_rate_of_v(real):
    def groups(rounding, job):
        lr = dict.fromkeys(job.hyper.lr, job.hyper.lr["v"])
        return real(rounding, dataclasses.replace(job, hyper=job.hyper.model_copy(update={"lr": lr})))

    return groups


def tail_kept(real):
    def blocks(texts, tokenizer, size, count, what):
        tokenizer.no_padding()
        ids = np.concatenate([np.array(tokenizer.encode(one).ids, np.int32) for one in texts])
        yield np.pad(ids, (0, -len(ids) % size)).reshape(-1, size)

    return blocks


def case_counts(real):
    return lambda sentence: " ".join(re.sub(r"(\W)", r" \1 ", sentence.split("<|endoftext|>")[0]).split())


def axes_of_linear(real):
    return lambda module: Axes(0) if (found := real(module)) == Axes(1) else found


def first_layer_low(real):
    return lambda self, end: real(self, None if end == "stem" else end)


def dev_set(real):
    return lambda data, split: real(data, "validation" if split == "train" else split)


MUTATIONS = {  # defect -> where it is planted, what makes it from what is there, a golden number that must move
    "FlexRound without s3": (FlexRound, "__init__", without("d3"), "b-flexround-w3/moved"),
    "FlexRound without s4": (FlexRound, "__init__", without("d4"), "b-flexround-w3/moved"),
    "AdaRound without its regulariser": (
        AdaRound,
        "regularizer",
        instead(lambda self, beta: None),
        "b-adaround-w3/hard",
    ),
    "first layer not 8 bit": (Reconstruction, "weight_bits", first_layer_low, "b-rtn-w3/bits_first"),
    "dropped activations are zero": (ActivationQuantizer, "quantize", dropped_to_zero, "q-flexround-w4a8/error"),
    "wrong zero point": (place, "initial_grid", zero_point_off_by_one, "q-rtn-w4a8/zero"),
    "BN not folded": (preprocess, "fold_batch_norm", instead(lambda model: {}), "b-rtn-w3/error"),
    "s3 along the input of Conv1D": (place, "weight_axes", axes_of_linear, "q-flexround-w8a8/moved"),
    "calibrated on the dev set": (text, "read_lines", dev_set, "questions/calibration/from_train"),
    "BLEU without lower-casing": (bleu, "post_process", case_counts, "metrics/bleu_all"),
    "acc instead of acc_norm": (Kind, "metric", instead("acc"), "questions/hellaswag"),
    "s1 learned at the rate of V": (phases, "_weight_groups", s1_at_the_rate_of_v, "b-adaquant-w3/step"),
    "tail of the corpus not dropped": (language_modelling, "blocks", tail_kept, "questions/ppl/examples"),
    "steps searched with p = 2": (search, "mean_error", last_argument(2.0), "b-rtn-w3/error"),
    "learning rate not annealed": (optimise, "_set_rates", last_argument(0.0), "b-flexround-w3/error"),
    "equalized on one side": (equalize, "_scale_input", instead(lambda *both: None), "surgery/output"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_defect_is_reported(monkeypatch, name):
    owner, attribute, change, number = MUTATIONS[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    probe, _, _ = number.partition("/")
    assert golden.compute(probe)[number] != GOLDEN[probe][number]
