"""The pretraining corpus of the mini scale: packing."""

import numpy as np

from flexround.tasks.corpus import pack
from flexround.tasks.encode import Encoded


def test_packing_joins_real_tokens_in_order_and_drops_the_tail():
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 0], [6, 0, 0, 0], [7, 8, 9, 0]], np.int32)
    found = pack(Encoded(ids, (ids % 2).astype(np.int8), ids > 0))
    assert found.ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert found.types.tolist() == [[1, 0, 1, 0], [1, 0, 1, 0]]
    assert found.mask.all()
