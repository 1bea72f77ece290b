"""The seven data sets' real questions through lm-eval, by a small random LLaMA: time of each way to ask them.

Call it with the directory of the posed questions (``boolq.jsonl`` and the others) and of a ``tokenizer.json``.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flexround.artifacts import write_text
from flexround.tasks.commonsense import files as choice_files
from flexround.tasks.commonsense.choices import KINDS
from flexround.tasks.text import encode

QUESTIONS, HIDDEN, LAYERS = 12, 64, 2


def model(vocabulary: int) -> Any:
    """Return a small LLaMA."""
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN, "num_hidden_layers": LAYERS}
    special = {"num_attention_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, **special)).eval()


def main(questions: Path, tokenizer: Path) -> None:
    """Print seconds and accuracies with a shared context, and as lm-eval asks by default."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    from flexround.tasks.commonsense import harness

    print(f"import of lm-eval: {time.perf_counter() - start:.1f} s")
    coder = encode.load(tokenizer / "tokenizer.json")
    network = model(coder.get_vocab_size())
    plain = type("Plain", (harness.Model,), {"loglikelihood": harness.HFLM.loglikelihood})
    ways = {"shared context": harness.Model(network, coder, "0.3", 64), "one by one": plain(network, coder, "0.3", 1)}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place)
        for name in KINDS:
            rows = choice_files.read(questions, name, train=False)
            for split, chosen in ((name, rows[:QUESTIONS]), (f"{name}-train", rows[QUESTIONS : 2 * QUESTIONS])):
                write_text(data / f"{split}.jsonl", "".join(f"{json.dumps(row)}\n" for row in chosen))
        for shots in (0, 5):
            for way, asked in ways.items():
                start = time.perf_counter()
                found = {name: harness.ask(asked, name, data, shots).scores["acc"].mean() for name in KINDS}
                shown = " ".join(f"{name} {100 * value:.1f}" for name, value in found.items())
                print(f"{shots} shots, {way}: {time.perf_counter() - start:.1f} s; {shown}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
