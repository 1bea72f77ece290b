"""The seven multiple-choice data sets, from parquet of the Hugging Face hub or as git repositories have them.

The files of git repositories have the questions posed already, as JSON lines or plain text. Six are those of
mosaicml/llm-foundry; HellaSwag is that of klosax/hellaswag_text_data. Their words become lm-eval's, but for three
details: the last sentence of HellaSwag's contexts keeps its small letter, ARC has four choices only, and no title
stands before BoolQ's passages, as it does in SuperGLUE, which lm-eval reads.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flexround.tasks.commonsense import choices
from flexround.tasks.commonsense.choices import KINDS, Row
from flexround.tasks.text import files as text_files

LINES = 6  # of a question of HellaSwag: context, number of the right ending, four endings
POSED = {  # in the sources directory, and what follows a query there
    "boolq": ("questions/reading_comprehension/boolq.jsonl", "\nAnswer:"),
    "piqa": ("questions/commonsense_reasoning/piqa.jsonl", "Answer:"),
    "hellaswag": ("hellaswag/hellaswag_val_full.txt.bz2", ""),
    "winogrande": ("questions/language_understanding/winogrande.jsonl", ""),
    "arc_easy": ("questions/world_knowledge/arc_easy.jsonl", "\nAnswer:"),
    "arc_challenge": ("questions/world_knowledge/arc_challenge.jsonl", "\nAnswer:"),
    "openbookqa": ("questions/commonsense_reasoning/openbook_qa.jsonl", ""),
}


def read(root: Path, name: str, train: bool) -> list[Row]:
    """Read the examples of a data set that are evaluated, or those that few-shot examples are drawn from.

    They come from ``root/NAME``, ``name`` as in ``KINDS``, or a folder in it, which the hub names after the data set's
    configuration. ARC and OpenBookQA are evaluated on their test split, the others, whose test labels are secret, on
    their validation split.

    Returns:
        Rows with the fields ``KINDS[name].fields``, which ``KINDS[name].pose`` takes.
    """
    return text_files.table(root / name, "train" if train else KINDS[name].split, KINDS[name].fields)


def read_posed(root: Path, name: str) -> list[Row]:
    """Read the questions that a git repository has of a data set, in the form that ``KINDS[name].pose`` returns."""
    file, end = POSED[name]
    lines = text_files.lines(root / file)
    if name == "hellaswag":
        return [_of_lines(group) for group in zip(*[lines] * LINES, strict=True)]
    return [_of_json(json.loads(line), end) for line in lines]


def _of_lines(lines: Iterable[str]) -> Row:
    """Return a question of HellaSwag, which is ``LINES`` lines."""
    context, gold, *endings = (choices.tidy(line) for line in lines)
    return {"query": context, "choices": endings, "gold": int(gold)}


def _of_json(row: dict[str, Any], end: str) -> Row:
    """Return a question; ``end`` follows its query."""
    if "continuation" in row:
        return {"choices": row["context_options"], "continuation": row["continuation"], "gold": row["gold"]}
    return {"query": row["query"].removeprefix("Passage: ") + end, "choices": row["choices"], "gold": row["gold"]}
