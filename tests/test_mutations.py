"""Planted defects are reported by the sentinels that watch for them; without one, nothing is."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from flexround.quant import activation, search
from flexround.quant.activation import ActivationQuantizer
from flexround.quant.adaround import AdaRound
from flexround.quant.flexround import FlexRound
from flexround.quant.rounding import Axes
from flexround.reconstruct import optimise, phases
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.regress import sentinels
from flexround.surgery import equalize, place, preprocess
from flexround.tasks.commonsense.choices import KINDS
from flexround.tasks.language import task as language_modelling
from flexround.tasks.text import task as text
from flexround.tasks.webnlg import bleu

REFERENCE = Path(__file__).resolve().parents[1] / "results/reference/sentinels.csv"


@pytest.fixture(scope="module")
def expected():
    return sentinels.read(REFERENCE)


def without(name):
    """Return a mutation: FlexRound has no scale of this name."""

    def plant(patch):
        real = FlexRound.__init__

        def init(self, *arguments, **options):
            real(self, *arguments, **options)
            setattr(self, name, None)

        patch.setattr(FlexRound, "__init__", init)

    return plant


def no_regularizer(patch):
    patch.setattr(AdaRound, "regularizer", lambda self, beta: None)


def first_layer_low(patch):
    real = Reconstruction.weight_bits
    patch.setattr(Reconstruction, "weight_bits", lambda self, end: real(self, None if end == "stem" else end))


def dropped_to_zero(patch):
    real = ActivationQuantizer.forward

    def forward(self, x):
        if self.generator is None:
            return real(self, x)
        kept = activation.keep_mask(x, self.keep_probability, self.generator)
        generator, self.generator = self.generator, None
        quantized = real(self, x)
        self.generator = generator
        return quantized * kept

    patch.setattr(ActivationQuantizer, "forward", forward)


def zero_point_off_by_one(patch):
    real = place.initial_grid

    def grid(x, scheme, *arguments):
        found = real(x, scheme, *arguments)
        return found if scheme.symmetric else dataclasses.replace(found, zero_point=found.zero_point + 1)

    patch.setattr(place, "initial_grid", grid)


def not_folded(patch):
    patch.setattr(preprocess, "fold_batch_norm", lambda model: {})


def transposed_s3(patch):
    real = place.weight_axes
    patch.setattr(place, "weight_axes", lambda module: Axes(0) if (found := real(module)) == Axes(1) else found)


def calibrated_on_dev(patch):
    real = text.read_lines
    patch.setattr(text, "read_lines", lambda data, split: real(data, "validation" if split == "train" else split))


def case_counts(patch):
    def post_process(sentence):
        return " ".join(re.sub(r"(\W)", r" \1 ", sentence.split("<|endoftext|>")[0]).split())

    patch.setattr(bleu, "post_process", post_process)


def acc_for_acc_norm(patch):
    for name, kind in list(KINDS.items()):
        patch.setitem(KINDS, name, kind._replace(metric="acc"))


def s1_at_the_rate_of_v(patch):
    real = phases._weight_groups

    def groups(rounding, job):
        lr = dict.fromkeys(job.hyper.lr, job.hyper.lr["v"])
        return real(rounding, dataclasses.replace(job, hyper=job.hyper.model_copy(update={"lr": lr})))

    patch.setattr(phases, "_weight_groups", groups)


def tail_kept(patch):
    def blocks(texts, tokenizer, size, count, what):
        tokenizer.no_padding()
        ids = np.concatenate([np.array(tokenizer.encode(one).ids, np.int32) for one in texts])
        yield np.pad(ids, (0, -len(ids) % size)).reshape(-1, size)

    patch.setattr(language_modelling, "blocks", blocks)


def squared_step_search(patch):
    real = search.mean_error
    patch.setattr(search, "mean_error", lambda x, grid, axis, p: real(x, grid, axis, 2.0))


def constant_rate(patch):
    real = optimise._set_rates
    patch.setattr(optimise, "_set_rates", lambda adam, groups, progress: real(adam, groups, 0.0))


def half_equalized(patch):
    patch.setattr(equalize, "_scale_input", lambda conv, factor: None)


MUTATIONS = {  # defect -> what plants it, a sentinel that must be reported
    "FlexRound without s3": (without("d3"), "b-flexround-w3/moved"),
    "FlexRound without s4": (without("d4"), "b-flexround-w3/moved"),
    "AdaRound without its regulariser": (no_regularizer, "b-adaround-w3/hard"),
    "first layer not 8 bit": (first_layer_low, "b-rtn-w3/bits_first"),
    "dropped activations are zero, unscaled": (dropped_to_zero, "dropping/sum"),
    "wrong zero point": (zero_point_off_by_one, "q-rtn-w4a8/zero"),
    "BN not folded": (not_folded, "surgery"),
    "s3 along the input of Conv1D": (transposed_s3, "scales/texts/s3"),
    "calibrated on the dev set": (calibrated_on_dev, "calibration-glue/from_train"),
    "BLEU without lower-casing": (case_counts, "metrics/bleu_all"),
    "acc instead of acc_norm": (acc_for_acc_norm, "questions/hellaswag"),
    "s1 learned at the rate of V": (s1_at_the_rate_of_v, "b-adaquant-w3/step"),
    "tail of the corpus not dropped": (tail_kept, "perplexity/ppl/examples"),
    "steps searched with p = 2": (squared_step_search, "b-rtn-w3/error"),
    "learning rate not annealed": (constant_rate, "b-flexround-w3/error"),
    "equalized on one side": (half_equalized, "surgery/equalized/output"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_defect_is_reported(monkeypatch, expected, name):
    plant, sentinel = MUTATIONS[name]
    plant(monkeypatch)
    lines = sentinels.check(expected, [sentinel.partition("/")[0]])
    assert any(line.startswith(f"sentinel {sentinel}: ") for line in lines), lines


def test_without_a_defect_nothing_is_reported(expected):
    assert sentinels.check(expected, {sentinel.partition("/")[0] for _, sentinel in MUTATIONS.values()}) == []


def test_the_reference_has_the_sentinels_of_every_probe(expected):
    assert {name.partition("/")[0] for name in expected} == sentinels.PROBES.keys()
