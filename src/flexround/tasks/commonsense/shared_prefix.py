"""Log likelihoods of several continuations of one context by one pass over the context.

The continuations stand behind the context one after the other, each at the positions right after it, and attend to it
and to themselves alone. That gives what one pass for each gives, but for rounding, in models whose attention depends
on positions alone and not on places in the sequence, such as LLaMA.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

TOKENS = {"cpu": 2**11, "cuda": 2**14}  # of one batch, padding included; a CPU is fastest where they fit its cache


class Request(NamedTuple):
    """A continuation of a context: its token ids, the context's first, and how many are the continuation's."""

    ids: list[int]
    asked: int


class Packed(NamedTuple):
    """Requests of one question as one sequence.

    Attributes:
        ids: token ids, the common prefix first.
        positions: of the tokens.
        branches: -1 for the prefix, else the number of the request.
        places: for each request where its continuation's tokens are predicted.
    """

    ids: list[int]
    positions: list[int]
    branches: list[int]
    places: list[list[int]]


def pack(requests: Sequence[Request]) -> Packed:
    """Put the requests of a question behind their common prefix; the last tokens predict nothing and are left out."""
    inputs = [request.ids[:-1] for request in requests]
    columns = zip(min(inputs), max(inputs), strict=False)  # what these two share, all between them share
    prefix = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], columns)))
    made = Packed(inputs[0][:prefix], list(range(prefix)), [-1] * prefix, [])
    for number, (request, ids) in enumerate(zip(requests, inputs, strict=True)):
        shift = len(made.ids) - prefix
        made.ids.extend(ids[prefix:])
        made.positions.extend(range(prefix, len(ids)))
        made.branches.extend([number] * (len(ids) - prefix))
        places = range(len(ids) - request.asked, len(ids))
        made.places.append([place if place < prefix else place + shift for place in places])
    return made


@torch.no_grad()
def likelihoods(model: Any, questions: Sequence[Sequence[Request]], batch: int) -> list[list[tuple[float, bool]]]:
    """Return the log likelihood of every continuation, and whether each of its tokens is the likeliest.

    Args:
        model: LLaMA with a language-modelling head.
        questions: the requests of each question.
        batch: questions at once, fewer where they are long.
    """
    packed = [pack(requests) for requests in questions]
    tokens = TOKENS[model.device.type]
    order = sorted(range(len(packed)), key=lambda index: -len(packed[index].ids))
    answers: list[list[tuple[float, bool]]] = [[] for _ in questions]
    while order:
        count = max(1, min(batch, tokens // len(packed[order[0]].ids)))
        chosen, order = order[:count], order[count:]
        states = _predicting(model, [packed[index] for index in chosen])
        scores = model.get_output_embeddings()(states).float().log_softmax(-1)
        asked = [(index, request) for index in chosen for request in questions[index]]
        ids = [token for _, request in asked for token in request.ids[-request.asked :]]
        wanted = torch.tensor(ids, device=scores.device)
        values, hits = scores.gather(1, wanted[:, None])[:, 0].cpu(), (scores.argmax(1) == wanted).cpu()
        parts = [request.asked for _, request in asked]
        for (index, _), value, hit in zip(asked, values.split(parts), hits.split(parts), strict=True):
            answers[index].append((float(value.sum()), bool(hit.all())))
    return answers


def _predicting(model: Any, packed: Sequence[Packed]) -> Tensor:
    """Return the last hidden states (P, H) at all places where a continuation's tokens are predicted, in order."""
    length, device = max(len(one.ids) for one in packed), model.device

    def padded(rows: list[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (length - len(row)) for row in rows], device=device)

    branches = padded([one.branches for one in packed], -2)
    from_, to = branches[:, :, None], branches[:, None, :]
    seen = ((to == -1) | (from_ == to)) & torch.ones(length, length, dtype=torch.bool, device=device).tril()
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=device).masked_fill(~seen, torch.finfo(model.dtype).min)
    ids, positions = padded([one.ids for one in packed], 0), padded([one.positions for one in packed], 0)
    states = model.base_model(input_ids=ids, position_ids=positions, attention_mask=mask[:, None], use_cache=False)[0]
    rows = [row for row, one in enumerate(packed) for places in one.places for _ in places]
    return states[rows, list(itertools.chain.from_iterable(places for one in packed for places in one.places))]
