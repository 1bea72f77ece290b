"""Common-sense reasoning and WikiText-2 perplexity of LLaMA, calibrated on C4 (tables 7 and 19 to 22).

lm-eval asks the questions. One evaluation covers every number of few-shot examples, because the tables of zero-shot
and five-shot accuracies share their networks.
"""

import itertools
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.tasks import harness, language, questions, text, text_metrics
from flexround.tasks.language import LanguageModelling, text_losses
from flexround.tasks.options import CommonsenseOptions, PosedOptions
from flexround.tasks.protocol import Evaluation, Inputs, Split
from flexround.tasks.questions import KINDS, Row

log = logging.getLogger(__name__)
JOINED = 1000  # documents that the authors' code joins before it cuts them into blocks; it drops the remainder
TEST = "wikitext2-raw/wiki.test.raw"
C4 = "c4-sample/c4.utf8"  # one document per line
LINES = 6  # of a HellaSwag question: context, number of the right ending, four endings
POSED = {  # path in the sources directory, and the text that follows each query
    "boolq": ("questions/reading_comprehension/boolq.jsonl", "\nAnswer:"),
    "piqa": ("questions/commonsense_reasoning/piqa.jsonl", "Answer:"),
    "hellaswag": ("hellaswag/hellaswag_val_full.txt.bz2", ""),
    "winogrande": ("questions/language_understanding/winogrande.jsonl", ""),
    "arc_easy": ("questions/world_knowledge/arc_easy.jsonl", "\nAnswer:"),
    "arc_challenge": ("questions/world_knowledge/arc_challenge.jsonl", "\nAnswer:"),
    "openbookqa": ("questions/commonsense_reasoning/openbook_qa.jsonl", ""),
}


class Commonsense(LanguageModelling):
    """Accuracies on seven multiple-choice data sets, and perplexities on WikiText-2.

    Metrics: ``NAME`` and ``NAME_SHOTS`` for the data sets of ``KINDS``, with the paper's choice of accuracy; ``ppl`` on
    the validation split, row by row as in ``LanguageModelling``; ``ppl_TOKENS`` on the test split with rows joined by
    blank lines, as in most later papers.
    """

    options: CommonsenseOptions  # type: ignore[assignment]

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the questions ``NAME``, few-shot examples ``NAME-train``, two WikiText-2 splits, and C4 as ``train``."""
        options, root = self.options, sources / self.options.root
        folders = {name: root / "commonsense" / name for name in KINDS}  # or in a folder there, as on the hub
        made = {name: text.table(folders[name], kind.split, kind.fields) for name, kind in KINDS.items()}
        if any(options.shots):
            made |= {f"{name}-train": text.table(folders[name], "train", KINDS[name].fields) for name in KINDS}
        for split in ("validation", "test"):
            made[split] = language.read(root / "wikitext2", "wikitext2", split)
        made["train"] = language.read_c4(root / "c4", options.calibration, options.shards, options.documents)
        return made

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return the documents, uint8 (bytes,), and the numbers by which ``inputs`` chooses blocks, int64 (samples,).

        The rule ``release`` takes the first blocks.
        """
        drawn = super().calibration(data, samples, seed)
        if self.options.calibration == "release":
            drawn["indices"] = np.arange(samples)
        return drawn

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return blocks of the documents as int64 (N, 2, T) ids and types, without padding.

        Raises:
            InputError: more samples than blocks, or a tokenizer that puts no token before a text.
        """
        self._tokenizer(network)
        if self.options.calibration == "paper":
            return super().inputs(samples, network)
        texts = [row["text"] for row in text.sampled(samples)]
        ids = np.concatenate(list(self.blocks(texts, network, JOINED)))
        if len(ids) < len(samples["indices"]):
            raise InputError(f"samples={len(samples['indices'])}: the documents of C4 have {len(ids)} blocks; lower it")
        first = ids[samples["indices"]].astype(np.int64)
        return Inputs(torch.from_numpy(np.stack([first, np.zeros_like(first)], axis=1)))

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return accuracies and perplexities; the predictions hold each question's ``acc`` and ``acc_norm``."""
        tokenizer = self._tokenizer(network)
        losses = self._losses(model, data, batch, tokenizer)
        scored = {metric: text_metrics.perplexity(values) for metric, values in losses.items()}
        predictions = {f"{metric}/loss": values for metric, values in losses.items()}
        asked, facts = harness.VersionedModel(model, tokenizer, self.options.prompts, batch), {}
        for name, shots in itertools.product(KINDS, self.options.shots):
            metric = f"{name}_{shots}" if shots else name
            answers = harness.ask(asked, name, data, shots)
            scored[metric] = text_metrics.averaged(answers.scores[KINDS[name].metric])
            predictions |= {f"{metric}/{kind}": values for kind, values in answers.scores.items()}
            if shots:
                predictions[f"{metric}/examples"] = answers.examples
            facts[metric] = answers.facts
            log.info("%s: %.2f", metric, scored[metric].value)
        protocol = {"lm_eval": harness.VERSION, "asked_as": self.options.prompts, "questions": facts}
        return text.evaluation(scored, predictions, protocol)

    def _losses(self, model: nn.Module, data: Path, batch: int, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
        """Return each perplexity's mean block losses in nats, float64 (N,)."""
        validation, test = ([row["text"] for row in text.read_rows(data, split)] for split in ("validation", "test"))
        size, long = self.options.block_size, self.options.test_block
        return {
            "ppl": text_losses(model, validation, tokenizer, size, batch, joined=self.options.joined),
            f"ppl_{long}": text_losses(model, ["\n\n".join(test)], tokenizer, long, batch),
        }

    def _tokenizer(self, network: Path) -> Tokenizer:
        """Return a network's tokenizer; check that it begins texts if the options require it."""
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        added = tokenizer.encode("").ids
        if self.options.begin and len(added) != 1:
            raise InputError(f"{network / TOKENIZER}: adds {len(added)} tokens to a text; LLaMA's adds one, its begin")
        return tokenizer


class PosedCommonsense(Commonsense):
    """Accuracies on some questions of seven data sets, and the perplexity ``ppl`` of WikiText-2's test text.

    The text is tokenized as a whole, and only its first blocks are evaluated. The task has no few-shot examples.
    """

    options: PosedOptions

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read a fixed random choice of questions, WikiText-2's ``test`` text as one row, and ``train`` documents."""
        made: dict[str, text.Rows] = {}
        for name in KINDS if self.options.shots else ():
            questions = read_posed(sources / self.options.root, name)
            order = np.random.default_rng(derive(f"questions of {name}")).permutation(len(questions))
            made[name] = [questions[index] for index in order[: self.options.questions]]
        test, train = (  # one copy of WikiText-2 has Windows line ends
            "".join(text.lines(sources / self.options.root / path)).replace("\r\n", "\n") for path in (TEST, C4)
        )
        made["train"] = [{"text": line} for line in train.split("\n") if line.strip()]
        return made | {"test": [{"text": test}]}

    def _losses(self, model: nn.Module, data: Path, batch: int, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
        (row,) = text.read_rows(data, "test")
        size, first = self.options.test_block, self.options.test_blocks
        return {"ppl": text_losses(model, [row["text"]], tokenizer, size, batch, first)}


def read_posed(root: Path, name: str) -> list[Row]:
    """Read a data set's questions from a git repository's file, in the form that ``KINDS[name].pose`` returns."""
    file, end = POSED[name]
    lines = text.lines(root / file)
    if name == "hellaswag":
        return [_of_lines(group) for group in zip(*[lines] * LINES, strict=True)]
    return [_of_json(json.loads(line), end) for line in lines]


def _of_lines(lines: Iterable[str]) -> Row:
    """Return a HellaSwag question from its ``LINES`` lines."""
    context, gold, *endings = (questions.tidy(line) for line in lines)
    return {"query": context, "choices": endings, "gold": int(gold)}


def _of_json(row: dict[str, Any], end: str) -> Row:
    """Return a question, with ``end`` appended to its query."""
    if "continuation" in row:
        return {"choices": row["context_options"], "continuation": row["continuation"], "gold": row["gold"]}
    return {"query": row["query"].removeprefix("Passage: ") + end, "choices": row["choices"], "gold": row["gold"]}
