"""Beam search of causal language models, batched, by the rules behind LoRA's published WebNLG scores.

The rules are those of ``examples/NLG/src/gpt2_beam.py`` of microsoft/LoRA, which decodes one prompt at a time.
transformers' ``generate`` has others: it bans tokens after the softmax, keeps as many finished hypotheses as beams, and
looks for repetitions in the prompt too.

Shapes: G prompts at work, K beams of each (1 before the first step), V tokens in the vocabulary, T tokens of a padded
prompt, L tokens generated so far, C tokens in the cache for each prompt.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from flexround.errors import NumericalError, SettingsError
from flexround.tasks.options import WebNLGOptions

FORGET_EVERY = 8  # steps; more often costs more copies than it saves


def search(
    model: Any, prompts: Sequence[Sequence[int]], options: WebNLGOptions, eos: Sequence[int], batch: int = 32
) -> list[list[int]]:
    """Return the best continuation of each prompt: its tokens, with the one of ``eos`` if it got that far.

    Args:
        model: a causal language model of transformers, on any device, but for GPT-Neo; left in evaluation mode.
        prompts: token ids, at least one each; of a prompt that is too long the last ones count.
        options: at most ``max_length`` tokens of prompt and continuation together, fewer if the model has fewer
            positions. A hypothesis scores its log probability over its length to the power ``length_penalty``.
        eos: tokens that finish a hypothesis.
        batch: prompts decoded at once. Which prompts share a batch doesn't matter, but for rounding.

    Raises:
        SettingsError: the model is a GPT-Neo.
        NumericalError: the model returns NaN or Inf.
    """
    if model.config.model_type == "gpt_neo":
        # Its local attention counts a token's distance by its place in the cache, where the beams stand side by side.
        raise SettingsError("beam search of a gpt_neo model: not possible, choose a gpt2, opt or llama")
    positions = getattr(model.config, "max_position_embeddings", options.max_length)  # BLOOM has no limit
    limit = min(options.max_length, positions) - options.steps
    cut = [list(prompt[-limit:]) for prompt in prompts]
    order = sorted(range(len(cut)), key=lambda index: len(cut[index]))  # prompts of a batch need little padding
    continuations: list[list[int]] = [[] for _ in cut]
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), batch):
            members = order[start : start + batch]
            for index, tokens in zip(members, _decode(model, [cut[i] for i in members], options, eos), strict=True):
                continuations[index] = tokens
    return continuations


def _decode(model: Any, prompts: list[list[int]], options: WebNLGOptions, eos: Sequence[int]) -> list[list[int]]:
    """Search the continuations of one batch of prompts.

    The cache keeps the tokens of all beams of a prompt side by side, and each beam sees its own past alone. So the
    prompt is kept once, and nothing moves in the cache when beams change places: copying it for every step, as is
    usual, takes most of the time of a small model.
    """
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]  # at the left
    columns = list(zip(padding, prompts, strict=True))
    tokens = torch.tensor([[0] * left + prompt for left, prompt in columns], device=model.device)
    mask = torch.tensor([[0] * left + [1] * len(prompt) for left, prompt in columns], device=model.device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    visible = mask.bool()[:, None]
    cache: Any = DynamicCache(config=model.config)
    ends = tokens.new_tensor(eos)
    running = torch.arange(len(prompts), device=tokens.device)  # the prompts still at work
    history = tokens.new_empty((len(prompts), 1, 0))
    scores = tokens.new_zeros((len(prompts), 1), dtype=torch.float64)
    best = scores.new_full((len(prompts),), -math.inf)
    continuations: list[list[int]] = [[] for _ in prompts]
    for length in range(1, options.steps + 1):
        arguments = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, "past_key_values": cache}
        logits = model(**arguments, use_cache=True, logits_to_keep=scores.shape[1]).logits.float()
        _ban_repeats(logits, history, options.no_repeat_ngram)
        parents, tokens, scores = _extend(logits, scores, options.beams)
        history = torch.cat([history.take_along_dim(parents[..., None], dim=1), tokens[..., None]], dim=2)

        # In the last step the unfinished hypotheses compete too.
        ended = torch.isin(tokens, ends) | (length == options.steps)
        value, beam = (scores / length**options.length_penalty).masked_fill(~ended, -math.inf).max(dim=1)
        for group in (value > best[running]).nonzero().flatten().tolist():
            continuations[running[group]] = history[group, beam[group]].tolist()
        best[running] = torch.maximum(best[running], value)

        # Log probabilities only fall, and the greatest length divides them most: where no beam would win if it kept its
        # log probability to the last step, no beam can win, and the prompt is done.
        scores = scores.masked_fill(ended, -math.inf)
        going = scores.amax(dim=1) / options.steps**options.length_penalty > best[running]
        if not going.any():
            break
        visible = visible.take_along_dim(parents[..., None], dim=1)
        if not going.all():
            running, scores, history, tokens = running[going], scores[going], history[going], tokens[going]
            positions, visible = positions[going], visible[going]
            cache.reorder_cache(going.nonzero().flatten())
        if length % FORGET_EVERY == 0:
            visible = _forget(cache, visible)
        own = torch.eye(options.beams, dtype=torch.bool, device=tokens.device)  # the token that each adds to the cache
        visible = torch.cat([visible, own.expand(len(visible), -1, -1)], dim=2)
        positions = (positions[:, -1:] + 1).expand_as(tokens)
        # From now on the mask of the attention itself, (G, 1, K, C), which transformers passes on as it is.
        mask = torch.zeros_like(visible, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)[:, None]
    return continuations


def _forget(cache: Any, visible: Tensor) -> Tensor:
    """Drop from the cache, in place, what no beam sees any more; return what is left of ``visible``, bool (G, K, C)."""
    used = visible.any(dim=1)
    kept = used.int().argsort(dim=1, descending=True, stable=True)[:, : int(used.sum(dim=1).max())]
    for layer in cache.layers:
        layer.keys = layer.keys.take_along_dim(kept[:, None, :, None], dim=2)
        layer.values = layer.values.take_along_dim(kept[:, None, :, None], dim=2)
    return visible.take_along_dim(kept[:, None], dim=2)


def _ban_repeats(logits: Tensor, history: Tensor, size: int) -> None:
    """Set to -inf, in place, the logits (G, K, V) of tokens that would complete an n-gram of (G, K, L) again.

    Before the softmax, so that the other tokens share the banned ones' probability.
    """
    length = history.shape[2]
    if length < size:
        return
    grams = history.unfold(2, size, 1)  # (G, K, L - n + 1, n)
    latest = history[:, :, None, length - size + 1 :]
    groups, beams, places = (grams[..., :-1] == latest).all(dim=-1).nonzero(as_tuple=True)
    logits[groups, beams, grams[groups, beams, places, -1]] = -math.inf


def _extend(logits: Tensor, scores: Tensor, beams: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the best extensions of each prompt's hypotheses by logits (G, K, V) and their scores so far (G, K).

    Return, (G, beams) each and the best first, the hypothesis that it extends, its new token and its log probability.
    """
    # The best of all are among the best of each hypothesis: nothing as large as the logits needs to be stored.
    top, tokens = logits.topk(beams)
    log_probabilities = top - logits.logsumexp(dim=2, keepdim=True)
    extended, chosen = (scores[..., None] + log_probabilities).flatten(1).topk(beams)
    if extended.isnan().any():
        raise NumericalError("the language model returns NaN or Inf: its weights or its quantization steps are broken")
    return chosen // beams, tokens.flatten(1).gather(1, chosen), extended
