"""Beam search against a search of one prompt at a time without a cache, and cases by hand."""

import collections
import math

import pytest
import tiny
import torch

from flexround.errors import NumericalError, SettingsError
from flexround.tasks.beam import search
from flexround.tasks.options import WebNLGOptions

VOCABULARY = 14
RULES, EOS = WebNLGOptions(beams=4, no_repeat_ngram=2, steps=12, max_length=24), (3, 5)


def random_model(seed, kind="gpt2"):
    positions = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    model = tiny.make(kind, vocab_size=VOCABULARY, **{positions: 24}).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.6, generator=generator)
    return model


def random_prompts(seed, count=5, longest=12):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def repeats(tokens, size):
    """Whether the last ``size`` tokens have come before."""
    return tuple(tokens[-size:]) in {tuple(tokens[start : start + size]) for start in range(len(tokens) - size)}


@torch.no_grad()
def one_at_a_time(model, prompt, rules, seen):
    """Return the best continuation of one prompt, straight from the rules; count in ``seen`` what happened."""
    beams, best = [(0.0, [])], (-math.inf, [])
    for length in range(1, rules.steps + 1):
        rows = model(torch.tensor([prompt + tokens for _, tokens in beams])).logits[:, -1].double().tolist()
        extended = []
        for (score, tokens), logits in zip(beams, rows, strict=True):
            allowed = [t for t in range(VOCABULARY) if not repeats([*tokens, t], rules.no_repeat_ngram)]
            seen["banned"] += VOCABULARY - len(allowed)
            total = math.log(sum(math.exp(logits[t]) for t in allowed))
            extended += [(score + logits[t] - total, [*tokens, t]) for t in allowed]
        beams = []
        for score, tokens in sorted(extended, reverse=True)[: rules.beams]:
            if tokens[-1] not in EOS and length < rules.steps:
                beams.append((score, tokens))
                continue
            seen["replaced"] += best[0] > -math.inf and score / length**rules.length_penalty > best[0]
            best = max(best, (score / length**rules.length_penalty, tokens))
        if not beams:
            break
    seen[f"ended by {best[1][-1]}" if best[1][-1] in EOS else "unfinished"] += 1
    return best[1]


def test_equals_the_search_of_one_prompt_at_a_time():
    """Whatever the padding in a batch, the architecture and its attention."""
    seen = collections.Counter()
    for seed in range(12):
        model, prompts = random_model(seed, ("gpt2", "opt", "llama")[seed // 4]), random_prompts(seed)
        model.set_attn_implementation(("eager", "sdpa")[seed // 2 % 2])
        change = {"length_penalty": (0.0, 0.8, 1.5)[seed % 3], "no_repeat_ngram": 1 + seed % 4}
        rules = RULES.model_copy(update=change)
        expected = [one_at_a_time(model, prompt, rules, seen) for prompt in prompts]
        assert search(model, prompts, rules, EOS, batch=3) == expected, seed
    occurred = {event: seen[event] for event in ("banned", "replaced", "ended by 3", "ended by 5", "unfinished")}
    assert min(occurred.values()) >= 3, occurred


def test_long_prompts_lose_their_start():
    model = random_model(1).train()  # dropout would show
    prompt = random_prompts(1, 1, 60)[0] * 30
    assert search(model, [prompt], RULES, EOS) == search(model, [prompt[-12:]], RULES, EOS)
    short = RULES.model_copy(update={"max_length": 20})
    assert search(model, [prompt], short, EOS) == search(model, [prompt[-8:]], short, EOS)


def test_what_cannot_be_decoded_is_named():
    model = random_model(0)
    assert search(model, [], RULES, EOS) == []
    model.config.model_type = "gpt_neo"
    with pytest.raises(SettingsError, match="choose a gpt2"):
        search(model, [[1]], RULES, EOS)
    model.config.model_type = "gpt2"
    model.lm_head.weight.data[2] = math.nan
    with pytest.raises(NumericalError, match="NaN"):
        search(model, [[1]], RULES, EOS)
