"""The offline image set: same bytes everywhere, splits that share no base digit, all classes."""

import hashlib

import pytest

from flexround.mini import digits

SHA256 = "cbf23142bb8ba48fc9a5a3770bf18064f13ae70cddc0a2728999e73f9ae3ab5c"


@pytest.fixture(scope="module")
def made():
    return digits.make(train=1500, validation=700, seed=0)


def test_the_bytes_are_the_same_on_every_machine(made):
    found = hashlib.sha256(b"".join(made[name].tobytes() for name in sorted(made))).hexdigest()
    assert found == SHA256


def test_no_base_digit_is_in_both_splits(made):
    assert not set(made["train_base"]) & set(made["val_base"])
    assert len(set(made["train_base"])) + len(set(made["val_base"])) == 1797
