"""Seconds of beam search: batches, against the published loop and against the same search of one prompt at a time."""

import math
import time

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.cache_utils import DynamicCache

from flexround.tasks.webnlg.beam import Rules, search

VOCABULARY, PROMPTS, REPEATS = 1000, 64, 3


@torch.no_grad()
def published(model: torch.nn.Module, prompt: list[int], rules: Rules) -> list[int]:
    """Search as the published script does: all beams in a cache that is reordered, always to the last step."""
    cache = DynamicCache()
    tokens, scores = torch.tensor([prompt] * rules.beams), torch.zeros(rules.beams)
    scores[1:] = -torch.inf
    history: list[list[int]] = [[] for _ in range(rules.beams)]
    best: tuple[float, list[int]] = (-torch.inf, [])
    for length in range(1, rules.steps + 1):
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits[:, -1]
        for row, past in enumerate(history):
            latest = past[length - rules.no_repeat_ngram :]
            grams = zip(*(past[start:] for start in range(rules.no_repeat_ngram)), strict=False)
            logits[row, [last for *first, last in grams if first == latest]] = -torch.inf
        scores, chosen = (scores[:, None] + logits.softmax(1).log()).flatten().topk(rules.beams)
        parents, tokens = chosen // VOCABULARY, (chosen % VOCABULARY)[:, None]
        cache.reorder_cache(parents)
        history = [history[parent] + token for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
        for row, past in enumerate(history):
            if past[-1] in rules.eos or length == rules.steps:
                best = max(best, (scores[row].item() / length**rules.length_penalty, past))
                scores[row] = -torch.inf
    return best[1]


def main() -> None:
    """Print the best times and their ratios for a small GPT-2 and the published rules."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).eval()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(VOCABULARY, size=length).tolist() for length in rng.integers(10, 60, PROMPTS)]
    rules = Rules(eos=(0,))
    ways = {"published loop": lambda: [published(model, prompt, rules) for prompt in prompts]}
    ways |= {f"batch {batch}": lambda batch=batch: search(model, prompts, rules, batch) for batch in (1, 16, 32, 64)}
    seconds: dict[str, float] = {}
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name] = min(time.perf_counter() - start, seconds.get(name, math.inf))
    for name, value in seconds.items():
        print(f"{name}: {value:.2f} s, the loop takes {seconds['published loop'] / value:.1f} x as long")


if __name__ == "__main__":
    main()
