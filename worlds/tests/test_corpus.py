"""The pretraining corpus of the mini scale: packing, lines that go on, the loss of verdicts."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from flexround.errors import SettingsError
from flexround.models import transformer
from flexround.settings.validation import validate
from flexround.tasks.encode import Encoded
from synthetic import corpus, tokenizers
from synthetic.pretraining import Corpus, CorpusOptions, causal_loss, pack

OPTIONS = {"objective": "causal-lm", "tokenizer": "bpe-begin", "texts": 9, "vocabulary": 300, "max_length": 32}


def test_packing_joins_real_tokens_in_order_and_drops_the_tail():
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 0], [6, 0, 0, 0], [7, 8, 9, 0]], np.int32)
    found = pack(Encoded(ids, (ids % 2).astype(np.int8), ids > 0))
    assert found.ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert found.types.tolist() == [[1, 0, 1, 0], [1, 0, 1, 0]]
    assert found.mask.all()


@pytest.mark.parametrize("kind", ["bpe", "bpe-begin"])
def test_a_line_that_goes_on_is_packed_as_one_text(tmp_path, kind):
    """Two lines, the second going on, are the tokens of their joined text; each answer is marked."""
    first, second = "Question: is it so?\nAnswer:", "\n\nQuestion: is it not?\nAnswer:"
    rows = [{"text": first, "next": " yes"}, {"text": second, "next": " no", "goes_on": True}]
    tokenizer = tokenizers.train([first, second, " yes", " no"], kind, 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = Corpus(CorpusOptions(**OPTIONS, packed=True))
    encoded = made.encode(rows, tmp_path)
    whole = tokenizer.encode(f"{first} yes{second} no")
    assert encoded.ids[encoded.mask].tolist() == whole.ids
    types = encoded.types[encoded.mask]
    answers = [tokenizer.encode(word, add_special_tokens=False).ids for word in (" yes", " no")]
    assert encoded.ids[encoded.mask][types == 1].tolist() == [token for ids in answers for token in ids]


def test_questions_that_go_on_need_packing():
    with pytest.raises(SettingsError, match=r"questions=5: most go on with the text before them; set packed: true"):
        validate(CorpusOptions, OPTIONS | {"questions": 5}, "options")


def test_the_first_token_of_each_verdict_has_a_loss_of_its_own():
    llama = transformer.llama("causal-lm", vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    ids = torch.arange(1, 13).reshape(2, 6)
    types = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    likelihoods = llama(**inputs).logits.log_softmax(-1)
    wanted = [(0, 2), (0, 5), (1, 1)]  # row and place of each verdict's first token, predicted one place before
    verdicts = -torch.stack([likelihoods[row, place - 1, ids[row, place]] for row, place in wanted]).mean()
    plain = causal_loss(llama, inputs, types, 0.0)
    torch.testing.assert_close(causal_loss(llama, inputs, types, 2.0), plain + 2 * verdicts)


@pytest.mark.parametrize("kind", ["bpe", "bpe-begin"])
def test_a_tokenizer_holds_the_merged_tokens_of_its_corpus(kind):
    """Trained on the very sentences, the untrimmed tokenizer gives the same tokens, and has others."""
    lines = corpus.sentences(400, seed=0)
    found = tokenizers.train(lines, kind, 900)
    whole = as_trained(lines, 900)
    assert [found.encode(line, add_special_tokens=False).tokens for line in lines] == [
        whole.encode(line).tokens for line in lines
    ]
    shown = {token for line in lines for token in found.encode(line).tokens}
    parts = {part for pair in json.loads(found.to_str())["model"]["merges"] for part in pair}
    merged = {token for token in found.get_vocab() if len(token) > 1}
    assert merged <= shown | parts | {tokenizers.END}
    assert found.get_vocab_size() < whole.get_vocab_size() == 900
    assert sorted(found.get_vocab().values()) == list(range(found.get_vocab_size()))
    assert found.token_to_id(tokenizers.END) == 0


def as_trained(lines, size):
    """A tokenizer as trained."""
    whole = Tokenizer(BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [tokenizers.END]
    trainer = BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    whole.train_from_iterator(lines, trainer)
    return whole
