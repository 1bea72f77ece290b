"""Multiple-choice questions through lm-eval."""

import contextlib
import functools
import hashlib
import io
import itertools
import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lm_eval
import numpy as np
import tokenizers
import torch
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.samplers import ContextSampler
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerFast

from flexround.io import resume
from flexround.settings.layout import PARAMS
from flexround.tasks.commonsense import choices, shared_prefix
from flexround.tasks.commonsense.choices import Row, Version
from flexround.tasks.language.task import LOGITS
from flexround.tasks.text import task as text

DEFINITIONS = PARAMS / "lm_eval"
VERSION = lm_eval.__version__
EXAMPLES = "examples"  # of a kept part, beside its scores
SEEDS: dict[Version, int] = {"0.3": 42, "0.4": 1234}  # of the few-shot examples in each version of lm-eval

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of everything that is meant here


class Answers(NamedTuple):
    """What a model answered to N questions.

    Attributes:
        scores: ``acc``, 1 where the right choice is the likeliest, and ``acc_norm``, the same per character, where the
            definition has it: uint8 (N,).
        examples: int32 (N, shots), which training examples came before each question.
        facts: versions, hashes and seeds for the record.
    """

    scores: dict[str, np.ndarray]
    examples: np.ndarray
    facts: dict[str, Any]


class VersionedModel(HFLM):
    """A causal language model as one of lm-eval's versions calls it.

    0.3 encodes a context and its continuation apart and adds nothing; 0.4 encodes them together, with what the
    tokenizer adds.
    """

    def __init__(self, model: Any, tokenizer: tokenizers.Tokenizer, version: Version, batch: int) -> None:
        """Take a model that is on its device, and its tokenizer, which loses padding and truncation."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        some = tokenizer.id_to_token(0)  # lm-eval wants tokens to pad and begin with, and has no use for them here
        wrapper = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=some, bos_token=some)
        super().__init__(pretrained=model, tokenizer=wrapper, batch_size=batch)
        self.version, self.batch = version, batch
        self.positions = int(self.max_length)  # lm-eval looks for them anew at each question
        # Without the slow wrapper. A question's choices, which share the context, come one after the other.
        self.ids = functools.lru_cache(4)(lambda text: tokenizer.encode(text, add_special_tokens=version != "0.3").ids)

    def tok_encode(self, string: str, *_: Any, **__: Any) -> list[int]:
        """Return token ids."""
        return self.ids(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the ids of a context and of what follows it."""
        if self.version == "0.3":
            return self.ids(context), self.ids(continuation)
        return super()._encode_pair(context, continuation)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return the log likelihood of each continuation, and whether greedy search would choose it.

        LLaMA reads the context of a question's choices once.
        """
        if self.config.model_type != "llama":
            lengths = (sum(map(len, self._encode_pair(*request.args))) for request in requests)
            longest = min(max(lengths), self.positions)
            self.batch_size_per_gpu = max(1, min(self.batch, LOGITS // (longest * self.config.vocab_size)))
            return super().loglikelihood(requests, disable_tqdm=True)
        questions = [list(group) for _, group in itertools.groupby(requests, key=lambda request: request.doc_id)]
        packed = [[self._request(*request.args) for request in question] for question in questions]
        likelihoods = shared_prefix.likelihoods(self.model, packed, int(self.batch_size))
        return list(itertools.chain(*likelihoods))

    def _request(self, context: str, continuation: str) -> shared_prefix.Request:
        """Encode a request; what is longer than the model's positions loses its beginning."""
        before, after = self._encode_pair(context, continuation)
        return shared_prefix.Request([*before, *after][-self.positions - 1 :], len(after))


class Drawn(ContextSampler):
    """Gives each question the examples that were drawn for it; the questions come in their order."""

    def __init__(self, rows: list[Row], drawn: np.ndarray) -> None:
        super().__init__(rows)
        self.remaining: Iterator[list[int]] = iter(drawn.tolist())

    def sample(self, n: int, eval_doc: Row | None = None, df: Any = None, **_: Any) -> list[Row]:
        """Return the examples of the next question."""
        return [self.df[index] for index in next(self.remaining)]


def draw(questions: int, available: int, shots: int, version: Version) -> np.ndarray:
    """Draw the examples that come before each question, as a version of lm-eval does: int32 (questions, shots).

    0.3 shuffles the questions by the generator that then draws; 0.4 draws in their order.
    """
    generator, order = random.Random(SEEDS[version]), list(range(questions))
    if version == "0.3":
        generator.shuffle(order)
    drawn = np.zeros((questions, shots), np.int32)
    for question in order:
        drawn[question] = generator.sample(range(available), shots)
    return drawn


def read(name: str, data: str, splits: dict[str, str], **_: Any) -> dict[str, Dataset]:
    """Pose the questions of prepared data; lm-eval calls this with a definition's ``dataset_kwargs``."""
    pose = choices.KINDS[name].pose
    prepared = {split: text.read_rows(Path(data), own) for split, own in splits.items()}
    return {
        split: Dataset.from_list([row if "gold" in row else pose(row) for row in rows])  # some files have them posed
        for split, rows in prepared.items()
    }


def ask(model: VersionedModel, name: str, data: Path, shots: int) -> Answers:
    """Let a model answer all questions of a data set, unless it did before this job was killed.

    ``data`` is the directory of ``NAME.jsonl`` and, for shots, the examples before each question,
    ``NAME-train.jsonl``. The version of the model decides which of these are drawn.
    """
    part = f"{name}-{shots}"
    if found := resume.load(part):
        tensors, kept = found
        examples = tensors.pop(EXAMPLES).numpy()
        return Answers({metric: values.numpy() for metric, values in tensors.items()}, examples, kept["facts"])
    since = time.monotonic()
    answers = _ask(model, name, data, shots)
    if resume.worth(since):
        arrays = answers.scores | {EXAMPLES: answers.examples}
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        resume.save(part, tensors, facts=answers.facts)
    return answers


def _ask(model: VersionedModel, name: str, data: Path, shots: int) -> Answers:
    splits = {"test": name} | ({"train": f"{name}-train"} if shots else {})
    arguments = {"name": name, "data": str(data), "splits": splits}
    changed: dict[str, Any] = {"task": name, "num_fewshot": shots, "dataset_kwargs": arguments}
    changed |= {} if shots else {"fewshot_split": None}
    task: Any = _manager().load({"group": "one", "task": [changed]})["tasks"][name]
    task.dataset = {split: list(rows) for split, rows in task.dataset.items()}  # decoded once, lm-eval reads them twice
    drawn = draw(len(task.dataset["test"]), len(task.dataset.get("train", ())), shots, model.version)
    if shots:
        task.sampler = Drawn(task.dataset["train"], drawn)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        results: Any = evaluate(lm=model, task_dict={"tasks": {name: task}}, bootstrap_iters=0)
    answers = sorted(results["samples"][name], key=lambda answer: answer["doc_id"])
    scores = {metric: np.array([answer[metric] for answer in answers], np.uint8) for metric in answers[0]["metrics"]}
    facts = {"version": str(task.VERSION), "definition_sha256": definition_hash(name), "shots": shots}
    return Answers(scores, drawn, facts | {"example_seed": SEEDS[model.version] if shots else None})


@functools.cache
def _manager() -> TaskManager:
    """Return lm-eval's view of our definitions alone."""
    return TaskManager(include_path=str(DEFINITIONS), include_defaults=False)


def definition_hash(name: str) -> str:
    """Return a sha256 of what decides how a data set is asked: its definition, and our code of the prompts."""
    files = (DEFINITIONS / "common.yaml", DEFINITIONS / f"{name}.yaml", Path(choices.__file__))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
