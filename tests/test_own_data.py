"""Tables of networks and data of the user's own, by one file outside the project, as docs/own.md shows it."""

import contextlib
import csv
import re

import pytest
import small
import transformers
from image_sets import save
from numpy.random import default_rng
from stage_calls import Work

from flexround.io import artifacts, sources
from flexround.models import transformer
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.load import load_params
from flexround.settings.params import hyper
from flexround.tasks import language
from synthetic import tokenizers

PAGE = (ROOT / "docs/own.md").read_text()
PAIRS = (("novel", "qwen"), ("photos", "resnet18"))
SHOWN = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "sources:" in text)


@pytest.fixture
def own(tmp_path):
    """The file of the page with its photographs, its novel and its network beside it."""
    folder = tmp_path / "beside"
    folder.mkdir()
    rng = default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for name in ("cats", "dogs", "owls"):
            (folder / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                save(folder / "photos" / split / name / f"{number}.png", (40, 44), rng)
    words = ["the owl sees the cat", "a dog hears the owl", "no cat hears a dog"] * 80
    (folder / "novel.txt").write_text("\n".join(words))
    arguments = load_params_of(SHOWN, folder).scale.checkpoints["qwen"].model.args
    model = transformer.auto("causal-lm", **arguments)
    model.save_pretrained(folder / "qwen3-tiny")
    assert isinstance(model, transformers.Qwen3ForCausalLM)
    tokenizers.train(words, "bpe", 300).save(str(folder / "qwen3-tiny/tokenizer.json"))
    return folder


def load_params_of(text, folder):
    (folder / "qwen3-tiny").mkdir(exist_ok=True)
    (folder / "own.yaml").write_text(text)
    (folder / "novel.txt").touch()
    return load_params(str(folder / "own.yaml"))


def test_image_folder_text_and_hugging_face_directory_get_tables(own, tmp_path, monkeypatch):
    monkeypatch.setattr(small, "write", lambda *_: False)  # nothing stands in for the data
    work = Work(own / "own.yaml", tmp_path)
    work.do("fetch", "qwen", out=layout.source_file("qwen"))
    for number, (task, checkpoint) in enumerate(reversed(PAIRS), start=1):
        for recipe in ("full-precision", "b-flexround-w4"):
            work.evaluated(task, checkpoint, recipe)
        table = work.do("tabulate", number, out=f"results/own/own{number}.csv")
        lines = list(csv.DictReader(table.read_text().splitlines()))
        assert [line["status"] for line in lines] == ["computed", "computed"]
    record = artifacts.read_json(tmp_path / "results/sources/novel.json")
    assert record["sha256"] == artifacts.sha256(own / "novel.txt")
    assert artifacts.read_json(tmp_path / "results/sources/qwen.json")["sha256"] == sources.digest(own / "qwen3-tiny")


def test_a_novel_keeps_its_lines_and_has_the_settings_of_texts(own):
    text = "It was the end.\r\n\r\n    def f(x):\n\treturn x\n" * 5
    (own / "novel.txt").write_bytes(text.encode())
    rows = [row for split in ("train", "validation") for row in language.read(own / "novel.txt", "text", split)]
    assert "".join(row["text"] for row in rows) == text.replace("\r\n", "\n")
    params = load_params(str(own / "own.yaml"))
    novel, photos = (hyper(params, Run("own", *pair, "q-rtn-w8a8", 0))[0] for pair in PAIRS)
    assert (novel.a_scheme, novel.head_bits, photos.a_scheme, photos.head_bits) == ("asymmetric", "low", "symmetric", 8)


def test_an_edit_in_a_folder_is_another_job_and_another_hash(own, tmp_path):
    def fetched():
        work = Work(own / "own.yaml", tmp_path)
        record = work.do("fetch", "photos", out=layout.source_file("photos"), again=True)
        with contextlib.chdir(tmp_path):
            return work.inputs("fetch", "photos").file, record.read_text()

    first, same = fetched(), fetched()
    assert first == same
    elsewhere = own.parent / "linked"
    (own / "photos/val").rename(elsewhere)
    (own / "photos/val").symlink_to(elsewhere)
    linked = fetched()
    assert linked[1] == first[1], "the same files by another way"
    save(elsewhere / "cats/0.png", (40, 44), default_rng(10))
    assert [now != before for now, before in zip(fetched(), linked, strict=True)] == [True, True]
