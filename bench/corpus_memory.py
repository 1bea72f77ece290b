"""Peak memory of a perplexity against the length of its text: does it grow? Each length in a process of its own."""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "worlds"))
from flexround import memory
from flexround.artifacts import write_text
from flexround.models import transformer
from flexround.tasks.language.options import LanguageOptions
from flexround.tasks.language.task import LanguageModelling
from flexround.tasks.text import task as text
from synthetic import files, tokenizers

ARTICLES = (100, 1_000, 10_000)


def measure(articles: int) -> None:
    """Evaluate a small GPT-Neo on so many articles and print the process's peak."""
    torch.set_num_threads(1)
    memory.keep_freed_memory()  # as every stage does
    task = LanguageModelling(LanguageOptions(name="wikitext2", block_size=64))
    sizes = {"vocab_size": 500, "hidden_size": 64, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = transformer.gpt_neo("causal-lm", attention_types=[[["global", "local"], 1]], **sizes, **ends)
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        # Prepared in another process: making the text takes memory, evaluating it is what is measured.
        code = f"import corpus_memory; corpus_memory.prepare({str(data)!r}, {articles})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
        found = task.evaluate(model, data, torch.device("cpu"), 64, data, "validation")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{articles} articles, {found.n_examples['ppl']} blocks: {peak:.0f} MB")


def prepare(directory: str, articles: int) -> None:
    """Write the data and a tokenizer."""
    task = LanguageModelling(LanguageOptions(name="wikitext2", block_size=64))
    files.language(Path(directory) / "wikitext2", "wikitext2", 100, articles)
    task.prepare(Path(directory), Path(directory))
    lines = [row["text"] for row in text.read_rows(Path(directory), "train")]
    write_text(Path(directory) / text.TOKENIZER, tokenizers.train(lines, "bpe", 500).to_str())


def main() -> None:
    """Measure every length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--articles", type=int, help="measure this one only")
    arguments = parser.parse_args()
    if arguments.articles:
        return measure(arguments.articles)
    for articles in ARTICLES:
        subprocess.run([sys.executable, __file__, f"--articles={articles}"], check=True)


if __name__ == "__main__":
    main()
