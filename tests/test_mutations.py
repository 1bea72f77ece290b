"""Numbers are the golden ones; a planted defect moves the number that watches for it."""

import csv
import dataclasses
import re
from collections import defaultdict
from functools import partial

import golden
import numpy as np
import pytest

from flexround.models.surgery import attach, equalize, preprocess
from flexround.quant import search
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.rounding import Axes
from flexround.reconstruct import optimise, phases
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.tasks.commonsense import harness
from flexround.tasks.text import task as text
from flexround.tasks.text import token_blocks
from flexround.tasks.webnlg import bleu

GOLDEN = defaultdict(dict)
for line in csv.DictReader(golden.FILE.read_text().splitlines()):
    tolerance = float(line["tolerance"])
    GOLDEN[line["name"].partition("/")[0]][line["name"]] = pytest.approx(float(line["value"]), abs=tolerance)


@pytest.mark.parametrize("probe", [*golden.PROBES])
def test_the_numbers_are_the_golden_ones(probe):
    assert golden.compute(probe) == GOLDEN[probe]


# Each defect stands in for a function and gets it, as ``real``, before its arguments.


def without(name, real, self, *arguments, **options):
    real(self, *arguments, **options)
    setattr(self, name, None)


def nothing(real, *arguments):
    return None


def first_layer_low(real, self, end):
    return real(self, None if end == "stem" else end)


def dropped_to_zero(real, self, x, kept):
    return real(self, x, None) * (1 if kept is None else kept)


def zero_point_off_by_one(real, x, scheme, *arguments):
    found = real(x, scheme, *arguments)
    return found if scheme.symmetric else dataclasses.replace(found, zero_point=found.zero_point + 1)


def axes_of_linear(real, module):
    return Axes(0) if (found := real(module)) == Axes(1) else found


def dev_set(real, data, split):
    return real(data, "validation" if split == "train" else split)


def case_counts(real, sentence):
    return " ".join(re.sub(r"(\W)", r" \1 ", sentence.split("<|endoftext|>")[0]).split())


def acc_alone(real, *arguments):
    found = real(*arguments)
    return found._replace(scores=dict.fromkeys(found.scores, found.scores["acc"]))


def s1_at_the_rate_of_v(real, rounding, job):
    lr = dict.fromkeys(job.hyper.lr, job.hyper.lr["v"])
    return real(rounding, dataclasses.replace(job, hyper=job.hyper.model_copy(update={"lr": lr})))


def not_annealed(real, adam, groups, progress):
    real(adam, groups, 0.0)


def tail_kept(real, texts, tokenizer, size, count, what):
    tokenizer.no_padding()
    ids = np.concatenate([np.array(tokenizer.encode(one).ids, np.int32) for one in texts])
    yield np.pad(ids, (0, -len(ids) % size)).reshape(-1, size)


MUTATIONS = {  # defect -> where it is planted, as what, and a golden number that must move
    "FlexRound without s3": (FlexRound, "__init__", partial(without, "d3"), "b-flexround-w3/moved"),
    "FlexRound without s4": (FlexRound, "__init__", partial(without, "d4"), "b-flexround-w3/moved"),
    "AdaRound without its regulariser": (AdaRound, "regularizer", nothing, "b-adaround-w3/hard"),
    "first layer not 8 bit": (Reconstruction, "weight_bits", first_layer_low, "b-rtn-w3/bits_first"),
    "dropped activations are zero": (ActivationQuantizer, "quantize", dropped_to_zero, "q-flexround-w4a8/error"),
    "wrong zero point": (attach, "initial_grid", zero_point_off_by_one, "q-rtn-w4a8/zero"),
    "BN not folded": (preprocess, "fold_batch_norm", nothing, "b-rtn-w3/error"),
    "s3 along the input of Conv1D": (attach, "weight_axes", axes_of_linear, "q-flexround-w8a8/moved"),
    "calibrated on the dev set": (text, "read_lines", dev_set, "questions/calibration/from_train"),
    "BLEU without lower-casing": (bleu, "post_process", case_counts, "metrics/bleu_all"),
    "acc instead of acc_norm": (harness, "ask", acc_alone, "questions/hellaswag"),
    "s1 learned at the rate of V": (phases, "_weight_groups", s1_at_the_rate_of_v, "b-adaquant-w3/step"),
    "tail of the corpus not dropped": (token_blocks, "blocks", tail_kept, "questions/ppl/examples"),
    "steps searched with p = 2": (search, "mean_error", lambda real, *rest: real(*rest[:-1], 2.0), "b-rtn-w3/error"),
    "learning rate not annealed": (optimise, "_set_rates", not_annealed, "b-flexround-w3/error"),
    "equalized on one side": (equalize, "_scale_input", nothing, "surgery/output"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_defect_is_reported(monkeypatch, name):
    owner, attribute, defect, number = MUTATIONS[name]
    real, probe = getattr(owner, attribute), number.partition("/")[0]
    monkeypatch.setattr(owner, attribute, lambda *rest, **options: defect(real, *rest, **options))
    assert golden.compute(probe)[number] != GOLDEN[probe][number]
