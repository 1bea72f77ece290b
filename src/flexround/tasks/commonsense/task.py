"""Common-sense reasoning and WikiText-2 perplexity of LLaMA, calibrated on C4 (tables 7 and 19 to 22).

lm-eval asks the questions. One evaluation asks them with every number of few-shot examples, because the tables of
zero-shot and of five-shot accuracies are about the same networks.
"""

import itertools
import logging
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from flexround.errors import InputError, SettingsError
from flexround.models import tokenizer_files
from flexround.models.tokenizer_files import TOKENIZER
from flexround.tasks.commonsense import files as choice_files
from flexround.tasks.commonsense import harness
from flexround.tasks.commonsense.choices import KINDS
from flexround.tasks.commonsense.options import CommonsenseOptions
from flexround.tasks.language import files as language_files
from flexround.tasks.language.task import LanguageModelling, text_losses
from flexround.tasks.protocol import Evaluation, Inputs, Split
from flexround.tasks.text import metrics as text_metrics
from flexround.tasks.text import task as text

log = logging.getLogger(__name__)
JOINED = 1000  # documents that the authors' code joins before it cuts them; what is left of them is dropped


class Commonsense(LanguageModelling):
    """Accuracies on seven multiple-choice data sets, and perplexities on WikiText-2.

    Metrics: ``NAME`` and ``NAME_SHOTS`` for the data sets of ``KINDS``, in the paper's choice of accuracy; ``ppl`` on
    the validation split, row by row as in ``LanguageModelling``; ``ppl_TOKENS`` on the test split, its rows joined by
    blank lines, as in most later papers.
    """

    options: CommonsenseOptions  # type: ignore[assignment]

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the questions, ``NAME`` and for shots ``NAME-train``, two splits of WikiText-2, and C4 as ``train``."""
        options, root = self.options, sources / self.options.root
        questions = root / "commonsense"
        made = {name: choice_files.read(questions, name, train=False) for name in KINDS}
        for name in KINDS if any(options.shots) else ():
            made[f"{name}-train"] = choice_files.read(questions, name, train=True)
        for split in ("validation", "test"):
            made[split] = language_files.read(root / "wikitext2", "wikitext2", split)
        made["train"] = language_files.read_c4(root / "c4", options.calibration, options.shards, options.documents)
        return made

    def calibration(self, data: Path, samples: int, seed: int) -> dict[str, np.ndarray]:
        """Return the documents, uint8 (bytes,), and the numbers by which ``inputs`` chooses blocks, int64 (samples,).

        ``release`` takes the first ones.
        """
        drawn = super().calibration(data, samples, seed)
        if self.options.calibration == "release":
            drawn["indices"] = np.arange(samples)
        return drawn

    def inputs(self, samples: dict[str, np.ndarray], network: Path) -> Inputs:
        """Return blocks of the documents as int64 (N, 2, T) ids and types; there is no padding.

        Raises:
            InputError: more samples than blocks, or a tokenizer that does not begin texts.
        """
        self._tokenizer(network)
        if self.options.calibration == "paper":
            return super().inputs(samples, network)
        texts = [row["text"] for row in text.sampled(samples)]
        ids = np.concatenate(list(self.blocks(texts, network, "documents of C4", JOINED)))
        if len(ids) < len(samples["indices"]):
            raise InputError(f"samples={len(samples['indices'])}: the documents of C4 have {len(ids)} blocks; lower it")
        first = ids[samples["indices"]].astype(np.int64)
        return Inputs(torch.from_numpy(np.stack([first, np.zeros_like(first)], axis=1)))

    def evaluate(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, network: Path, split: Split
    ) -> Evaluation:
        """Return accuracies and perplexities; predictions hold ``acc`` and ``acc_norm`` of each question."""
        if split == "heldout":
            raise SettingsError(f"{data}: no settings are chosen on common-sense reasoning")
        tokenizer = self._tokenizer(network)
        losses = self._losses(model, data, device, batch, tokenizer)
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

    def _losses(
        self, model: nn.Module, data: Path, device: torch.device, batch: int, tokenizer: Tokenizer
    ) -> dict[str, np.ndarray]:
        """Return the blocks' mean losses in nats, float64 (N,), for each of the two perplexities."""

        validation, test = ([row["text"] for row in text.read_rows(data, split)] for split in ("validation", "test"))
        parts = {
            "ppl": (validation, self.options.block_size, self.options.joined),
            f"ppl_{self.options.test_block}": (["\n\n".join(test)], self.options.test_block, None),
        }
        return {
            metric: text_losses(
                model, texts, tokenizer, size, device, batch, f"{data}, texts of {metric}", joined=joined
            )
            for metric, (texts, size, joined) in parts.items()
        }

    def _tokenizer(self, network: Path) -> Tokenizer:
        """Return the tokenizer of a network, which begins texts if the options say so."""
        tokenizer = tokenizer_files.load(network / TOKENIZER)
        added = tokenizer.encode("").ids
        if self.options.begin and len(added) != 1:
            raise InputError(
                f"{network / TOKENIZER}: adds {len(added)} tokens to a text, LLaMA's one at its beginning; "
                "convert it again with add_bos_token, or set the task's option begin to false"
            )
        return tokenizer
