"""Beam search of causal language models, batched, by the rules behind LoRA's published WebNLG scores.

The rules are those of ``examples/NLG/src/gpt2_beam.py`` of microsoft/LoRA, which decodes one prompt at a time.
transformers' ``generate`` differs: it bans tokens after the softmax, keeps as many finished hypotheses as beams, and
also searches the prompt for repetitions.

Shapes: G unfinished prompts, K beams per prompt (1 before the first step), V tokens in the vocabulary, T tokens of a
padded prompt, L tokens generated so far, C cached tokens per prompt.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from flexround.errors import NumericalError, SettingsError
from flexround.tasks.options import WebNLGOptions

FORGET_EVERY = 8  # steps; a smaller interval costs more in copies than it saves


def search(
    model: Any, prompts: Sequence[Sequence[int]], options: WebNLGOptions, eos: Sequence[int], batch: int = 32
) -> list[list[int]]:
    """Return the tokens of each prompt's best continuation, including the final ``eos`` token if it was generated.

    Args:
        model: a causal language model of transformers, except GPT-Neo, on any device; left in evaluation mode.
        prompts: token ids, at least one per prompt; a prompt that is too long loses its first tokens.
        options: prompt and continuation together have at most ``max_length`` tokens, fewer if the model has fewer
            positions. A hypothesis scores its log probability divided by its length to the power ``length_penalty``.
        eos: tokens that end a hypothesis.
        batch: prompts decoded at once. The grouping into batches changes results only by rounding.

    Raises:
        SettingsError: the model is a GPT-Neo.
        NumericalError: the model returns NaN or Inf.
    """
    if model.config.model_type == "gpt_neo":
        # GPT-Neo's local attention measures distance by cache position, but the cache holds the beams side by side.
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
    """Search for the best continuations of one batch of prompts.

    The cache holds the tokens of a prompt's beams side by side, and each beam attends only to its own past. So the
    prompt is cached once, and the cache stays in place when beams are reordered. The usual copy of the cache at every
    step takes most of a small model's time.
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
    running = torch.arange(len(prompts), device=tokens.device)  # the unfinished prompts
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

        # Log probabilities only fall, and the greatest length divides them most. A prompt is done if no beam would win
        # even if it kept its log probability until the last step.
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
        # Later steps pass the attention's own mask, (G, 1, K, C), which transformers uses unchanged.
        mask = torch.zeros_like(visible, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)[:, None]
    return continuations


def _forget(cache: Any, visible: Tensor) -> Tensor:
    """Drop cached tokens that no beam attends to, in place; return the shortened ``visible``, bool (G, K, C)."""
    used = visible.any(dim=1)
    kept = used.int().argsort(dim=1, descending=True, stable=True)[:, : int(used.sum(dim=1).max())]
    for layer in cache.layers:
        layer.keys = layer.keys.take_along_dim(kept[:, None, :, None], dim=2)
        layer.values = layer.values.take_along_dim(kept[:, None, :, None], dim=2)
    return visible.take_along_dim(kept[:, None], dim=2)


def _ban_repeats(logits: Tensor, history: Tensor, size: int) -> None:
    """Set to -inf, in place, the logits (G, K, V) of tokens that would repeat an n-gram of ``history`` (G, K, L).

    The ban precedes the softmax, so the other tokens share the banned tokens' probability.
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

    Return three arrays (G, beams), best first: the extended hypothesis, the new token and the log probability.
    """
    # The best extensions overall are among the best of each hypothesis, so no second array is as large as the logits.
    top, tokens = logits.topk(beams)
    log_probabilities = top - logits.logsumexp(dim=2, keepdim=True)
    extended, chosen = (scores[..., None] + log_probabilities).flatten(1).topk(beams)
    if extended.isnan().any():
        raise NumericalError("the language model returns NaN or Inf: its weights or its quantization steps are broken")
    return chosen // beams, tokens.flatten(1).gather(1, chosen), extended
