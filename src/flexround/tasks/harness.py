"""Multiple-choice questions through lm-eval."""

import contextlib
import functools
import hashlib
import io
import itertools
import logging
import random
import time
from collections.abc import Iterator, Sequence
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
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from flexround.io import resume
from flexround.settings.layout import PARAMS
from flexround.tasks import questions, text
from flexround.tasks.language import LOGITS
from flexround.tasks.questions import Row, Version

TOKENS = {"cpu": 2**11, "cuda": 2**14}  # per batch, with padding; a CPU is fastest if the batch fits its cache
DEFINITIONS = PARAMS / "lm_eval"
VERSION = lm_eval.__version__
EXAMPLES = "examples"  # key of the few-shot examples in a saved part, beside its scores
SEEDS: dict[Version, int] = {"0.3": 42, "0.4": 1234}  # for drawing few-shot examples, by version of lm-eval

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings concern choices made on purpose here


class Request(NamedTuple):
    """A context and its continuation: their token ids in this order, and the continuation's number of tokens."""

    ids: list[int]
    asked: int


class Packed(NamedTuple):
    """One question's requests as one sequence.

    Attributes:
        ids: token ids, the common prefix first.
        positions: each token's position.
        branches: for each token -1 in the prefix, else its request's number.
        places: for each request, the indices at which its continuation's tokens are predicted.
    """

    ids: list[int]
    positions: list[int]
    branches: list[int]
    places: list[list[int]]


def pack(requests: Sequence[Request]) -> Packed:
    """Put a question's requests behind their common prefix; their last tokens predict nothing and are left out."""
    inputs = [request.ids[:-1] for request in requests]
    columns = zip(min(inputs), max(inputs), strict=False)  # the prefix of these two is common to all inputs
    prefix = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], columns)))
    made = Packed(inputs[0][:prefix], list(range(prefix)), [-1] * prefix, [])
    for number, (request, ids) in enumerate(zip(requests, inputs, strict=True)):
        shift = len(made.ids) - prefix
        made.ids.extend(ids[prefix:])
        made.positions.extend(range(prefix, len(ids)))
        made.branches.extend([number] * (len(ids) - prefix))
        places = range(len(ids) - request.asked, len(ids))
        made.places.append([place if place < prefix else place + shift for place in places])
    return made


@torch.no_grad()
def likelihoods(model: Any, questions: Sequence[Sequence[Request]], batch: int) -> list[list[tuple[float, bool]]]:
    """Return each continuation's log likelihood, and whether all of its tokens are the likeliest.

    Args:
        model: LLaMA with a language-modelling head.
        questions: each question's requests.
        batch: questions per batch, fewer if they are long.
    """
    packed = [pack(requests) for requests in questions]
    tokens = TOKENS[model.device.type]
    order = sorted(range(len(packed)), key=lambda index: -len(packed[index].ids))
    answers: list[list[tuple[float, bool]]] = [[] for _ in questions]
    while order:
        count = max(1, min(batch, tokens // len(packed[order[0]].ids)))
        chosen, order = order[:count], order[count:]
        states = _predicting(model, [packed[index] for index in chosen])
        scores = model.get_output_embeddings()(states).float().log_softmax(-1)
        asked = [(index, request) for index in chosen for request in questions[index]]
        ids = [token for _, request in asked for token in request.ids[-request.asked :]]
        wanted = torch.tensor(ids, device=scores.device)
        values, hits = scores.gather(1, wanted[:, None])[:, 0].cpu(), (scores.argmax(1) == wanted).cpu()
        parts = [request.asked for _, request in asked]
        for (index, _), value, hit in zip(asked, values.split(parts), hits.split(parts), strict=True):
            answers[index].append((float(value.sum()), bool(hit.all())))
    return answers


def _predicting(model: Any, packed: Sequence[Packed]) -> Tensor:
    """Return the last hidden states (P, H) at all ``places`` of the packed questions, in order."""
    length, device = max(len(one.ids) for one in packed), model.device

    def padded(rows: list[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (length - len(row)) for row in rows], device=device)

    branches = padded([one.branches for one in packed], -2)
    from_, to = branches[:, :, None], branches[:, None, :]
    seen = ((to == -1) | (from_ == to)) & torch.ones(length, length, dtype=torch.bool, device=device).tril()
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=device).masked_fill(~seen, torch.finfo(model.dtype).min)
    ids, positions = padded([one.ids for one in packed], 0), padded([one.positions for one in packed], 0)
    states = model.base_model(input_ids=ids, position_ids=positions, attention_mask=mask[:, None], use_cache=False)[0]
    rows = [row for row, one in enumerate(packed) for places in one.places for _ in places]
    return states[rows, list(itertools.chain.from_iterable(places for one in packed for places in one.places))]


class Answers(NamedTuple):
    """A model's answers to N questions.

    Attributes:
        scores: ``acc``, 1 if the right choice is the likeliest, and ``acc_norm``, the same per character, if the
            definition has it: uint8 (N,).
        examples: int32 (N, shots), the indices of the training examples before each question.
        facts: versions, hashes and seeds for the record.
    """

    scores: dict[str, np.ndarray]
    examples: np.ndarray
    facts: dict[str, Any]


class VersionedModel(HFLM):
    """A causal language model as one of lm-eval's versions calls it.

    Version 0.3 encodes context and continuation separately, without special tokens. Version 0.4 encodes them together,
    with the tokenizer's special tokens.
    """

    def __init__(self, model: Any, tokenizer: tokenizers.Tokenizer, version: Version, batch: int) -> None:
        """Take a model on its device, and its tokenizer, which loses padding and truncation."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        some = tokenizer.id_to_token(0)  # lm-eval requires a padding and a first token, but doesn't use them here
        wrapper = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=some, bos_token=some)
        super().__init__(pretrained=model, tokenizer=wrapper, batch_size=batch)
        self.version, self.batch = version, batch
        self.positions = int(self.max_length)  # lm-eval would look them up again at each question
        # This avoids the slow wrapper. A question's choices, which share their context, are consecutive.
        self.ids = functools.lru_cache(4)(lambda text: tokenizer.encode(text, add_special_tokens=version != "0.3").ids)

    def tok_encode(self, string: str, *_: Any, **__: Any) -> list[int]:
        return self.ids(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if self.version == "0.3":
            return self.ids(context), self.ids(continuation)
        return super()._encode_pair(context, continuation)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return each continuation's log likelihood, and whether greedy search would choose it.

        LLaMA reads the choices' common context only once per question.
        """
        if self.config.model_type != "llama":
            lengths = (sum(map(len, self._encode_pair(*request.args))) for request in requests)
            longest = min(max(lengths), self.positions)
            self.batch_size_per_gpu = max(1, min(self.batch, LOGITS // (longest * self.config.vocab_size)))
            return super().loglikelihood(requests, disable_tqdm=True)
        questions = [list(group) for _, group in itertools.groupby(requests, key=lambda request: request.doc_id)]
        packed = [[self._request(*request.args) for request in question] for question in questions]
        found = likelihoods(self.model, packed, int(self.batch_size))
        return list(itertools.chain(*found))

    def _request(self, context: str, continuation: str) -> Request:
        """Encode a request; a sequence longer than the model's positions loses its beginning."""
        before, after = self._encode_pair(context, continuation)
        return Request([*before, *after][-self.positions - 1 :], len(after))


class Drawn(ContextSampler):
    """A sampler that gives each question the examples drawn for it; the questions must come in order."""

    def __init__(self, rows: list[Row], drawn: np.ndarray) -> None:
        super().__init__(rows)
        self.remaining: Iterator[list[int]] = iter(drawn.tolist())

    def sample(self, n: int, eval_doc: Row | None = None, df: Any = None, **_: Any) -> list[Row]:
        return [self.df[index] for index in next(self.remaining)]


def draw(questions: int, available: int, shots: int, version: Version) -> np.ndarray:
    """Draw the examples before each question, as a version of lm-eval does: int32 (questions, shots).

    Version 0.3 first shuffles the questions with the same generator; version 0.4 keeps their order.
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
    pose = questions.KINDS[name].pose
    prepared = {split: text.read_rows(Path(data), own) for split, own in splits.items()}
    return {
        split: Dataset.from_list([row if "gold" in row else pose(row) for row in rows])  # some files are posed already
        for split, rows in prepared.items()
    }


def ask(model: VersionedModel, name: str, data: Path, shots: int) -> Answers:
    """Let a model answer all questions of a data set, or load the answers saved before this job was killed.

    ``data`` is the directory of the questions ``NAME.jsonl`` and, for few-shot examples, ``NAME-train.jsonl``. The
    model's version of lm-eval decides which examples are drawn.
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
    """Return lm-eval's task manager with our definitions only."""
    return TaskManager(include_path=str(DEFINITIONS), include_defaults=False)


def definition_hash(name: str) -> str:
    """Return a sha256 of a data set's definition and of our prompt code, which together decide its prompts."""
    files = (DEFINITIONS / "common.yaml", DEFINITIONS / f"{name}.yaml", Path(questions.__file__))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
