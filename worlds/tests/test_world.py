"""The world, the text to pretrain on and the questions: the same bytes on every machine."""

import hashlib
import json

import pytest

from flexround.tasks.questions import answered
from synthetic import choices, corpus


@pytest.mark.parametrize(
    ("make", "sha256"),
    [
        (lambda: corpus.sentences(12000, seed=0), "35b7319e5f2edc1f4d4e78ace64dd584ab29b88c947226a967394275cae1426f"),
        (
            lambda: corpus.sentences(300, seed=0, kinds="records"),
            "230923f8655ce0aa870cc60ed32025db13fc4c3cfdbd8834151383dacc012312",
        ),
        (
            lambda: corpus.sentences(300, seed=0, kinds="facts"),
            "95e66cc742c34541e2318a350d26199d8d364191bb08b5f60704086437c03405",
        ),
        (lambda: corpus.pairs(3000, seed=0), "d8da9f3b3b967b865849a6f2a62affd68068b20b2dd15278d02bf0b0df5b2320"),
        (
            lambda: choices.sheets(200, 0, answered),
            "47d8cf0dae1187a0a39c6f1392d0eecb7087e7e9961aaa5e773c9c8e96dd7b6e",
        ),
    ],
    ids=["plain", "records", "facts", "pairs", "sheets"],
)
def test_what_is_made_from_a_seed_has_this_sha256(make, sha256):
    assert hashlib.sha256(json.dumps(make(), sort_keys=True).encode()).hexdigest() == sha256
