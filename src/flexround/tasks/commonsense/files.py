"""The seven multiple-choice data sets, from parquet of the Hugging Face hub or as git repositories have them.

The files of git repositories have the questions posed already, as JSON lines or plain text. Six are those of
mosaicml/llm-foundry; HellaSwag is that of klosax/hellaswag_text_data. Their words become lm-eval's, but for three
details: the last sentence of HellaSwag's contexts keeps its small letter, ARC has four choices only, and no title
stands before BoolQ's passages, as it does in SuperGLUE, which lm-eval reads.
"""

import json
from pathlib import Path
from typing import Any

from flexround.tasks.commonsense import choices
from flexround.tasks.commonsense.choices import KINDS, Row
from flexround.tasks.text import files as text_files

SHOTS = "few-shot examples come from it, without them set shots to [0]"
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

    Raises:
        InputError: missing, damaged or empty files, missing fields, labels that are not there.
    """
    kind, (split, hint) = KINDS[name], ("train", SHOTS) if train else (KINDS[name].split, text_files.WHERE)

    def row(record: Row) -> Row:
        content = {field: record[field] for field in kind.fields}
        if lacking := [field for field, value in content.items() if value is None]:
            raise ValueError(f"no {', '.join(lacking)}")
        choices.check(kind.pose(content))
        return content

    place, records = text_files.table(root / name, split, kind.fields, hint)
    return text_files.converted(place, records, row, f"a question of {name}")


def read_posed(root: Path, name: str) -> list[Row]:
    """Read the questions that a git repository has of a data set, in the form that ``KINDS[name].pose`` returns.

    Raises:
        InputError: a missing, damaged or empty file, or a line that is no question.
    """
    file, end = POSED[name]
    lines = list(text_files.lines(root / file))

    def row(text: str) -> Row:
        question = _of_lines(text) if name == "hellaswag" else _of_json(text, end)
        choices.check(question)
        return question

    if name == "hellaswag":
        groups = (lines[start : start + LINES] for start in range(0, len(lines), LINES))
        lines = [(group[0][0], "".join(line for _, line in group)) for group in groups]
    return text_files.converted(root / file, lines, row, f"a question of {name}")


def _of_lines(text: str) -> Row:
    """Return a question of HellaSwag, which is ``LINES`` lines."""
    context, gold, *endings = (choices.tidy(line) for line in text.rstrip("\n").split("\n"))
    if len(endings) != LINES - 2:
        raise ValueError(f"{len(endings)} endings")
    return {"query": context, "choices": endings, "gold": int(gold)}


def _of_json(line: str, end: str) -> Row:
    """Return a question; ``end`` follows its query."""
    row: Any = json.loads(line)
    if "continuation" in row:
        return {"choices": row["context_options"], "continuation": row["continuation"], "gold": row["gold"]}
    return {"query": row["query"].removeprefix("Passage: ") + end, "choices": row["choices"], "gold": row["gold"]}
