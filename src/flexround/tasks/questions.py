"""The seven multiple-choice data sets of tables 7 and 19 to 22: their fields, and how lm-eval asks them.

Prompts, choices and splits are those of lm-eval 0.3.0 and 0.4.13, which don't differ in them (docs/differences.md).
Rows have the fields of the data sets on the Hugging Face hub.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Row = dict[str, Any]
Version = Literal["0.3", "0.4"]  # of lm-eval


class Kind(NamedTuple):
    """One data set.

    Attributes:
        fields: of a row.
        split: on the hub, the one that is evaluated; few-shot examples come from ``train``.
        metric: the paper's choice, ``acc`` or ``acc_norm``, whose log likelihoods are per character.
        pose: from a row to ``choices`` and ``gold``, the index of the right one, with the ``query`` that all choices
            continue. WinoGrande's choices are texts that are all followed by the same ``continuation``.
    """

    fields: tuple[str, ...]
    split: str
    metric: str
    pose: Callable[[Row], Row]


def boolq(row: Row) -> Row:
    """Ask whether it is so."""
    query = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    return {"query": query, "choices": ["no", "yes"], "gold": int(row["label"])}


def piqa(row: Row) -> Row:
    """Ask how to reach a goal."""
    return {
        "query": f"Question: {row['goal']}\nAnswer:",
        "choices": [row["sol1"], row["sol2"]],
        "gold": int(row["label"]),
    }


def hellaswag(row: Row) -> Row:
    """Let a text go on."""
    query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return {"query": tidy(query), "choices": [tidy(text) for text in row["endings"]], "gold": int(row["label"])}


def winogrande(row: Row) -> Row:
    """Put each option in place of the blank; the rest of the sentence follows both."""
    before, after = row["sentence"].split("_", 1)
    choices = [before + row["option1"], before + row["option2"]]
    return {"choices": choices, "continuation": after.strip(), "gold": int(row["answer"]) - 1}


def arc(row: Row) -> Row:
    """Ask a question of an exam."""
    return {"query": f"Question: {row['question']}\nAnswer:", **lettered(row)}


def openbookqa(row: Row) -> Row:
    """Let a choice follow the stem, which may be a question or half a sentence."""
    return {"query": row["question_stem"], **lettered(row)}


def lettered(row: Row) -> Row:
    """Return choices that have letters or digits."""
    choices = row["choices"]
    return {"choices": list(choices["text"]), "gold": list(choices["label"]).index(row["answerKey"].strip())}


def tidy(text: str) -> str:
    """Remove WikiHow's marks from HellaSwag's text: titles end with a full stop, other brackets vanish."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


_EXAM = Kind(("question", "choices", "answerKey"), "test", "acc_norm", arc)
KINDS = {
    "boolq": Kind(("passage", "question", "label"), "validation", "acc", boolq),
    "piqa": Kind(("goal", "sol1", "sol2", "label"), "validation", "acc_norm", piqa),
    "hellaswag": Kind(("activity_label", "ctx_a", "ctx_b", "endings", "label"), "validation", "acc_norm", hellaswag),
    "winogrande": Kind(("sentence", "option1", "option2", "answer"), "validation", "acc", winogrande),
    "arc_easy": _EXAM,
    "arc_challenge": _EXAM,
    "openbookqa": Kind(("question_stem", "choices", "answerKey"), "test", "acc_norm", openbookqa),
}


def answered(name: str, row: Row) -> list[tuple[str, str]]:
    """Return a question of a data set as lm-eval asks it, with each answer and the space before it; the right first."""
    posed = KINDS[name].pose(row)
    gold, choices = posed["gold"], posed["choices"]
    ordered = [choices[gold], *choices[:gold], *choices[gold + 1 :]]
    if "continuation" in posed:
        return [(choice, f" {posed['continuation']}") for choice in ordered]
    return [(posed["query"], f" {choice}") for choice in ordered]
