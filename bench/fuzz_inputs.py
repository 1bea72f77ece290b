"""Kinds of :mod:`fuzz`: what others release, in the formats in which they do; small stand-ins, as in a rehearsal."""

import bz2
import functools
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import real_files
import torch
from fuzz import Kind
from test_pretrained import make as small

from flexround import imports, sources
from flexround.models.checkpoints import brecq_mobilenetv2, load_into, read_foreign
from flexround.models.shards import Shards
from flexround.rehearsal import data, networks, tokenizers
from flexround.settings.load import load_params
from flexround.settings.schema import Source, Task
from flexround.surgery.lora import merge_checkpoint
from flexround.tasks import protocol
from flexround.tasks.commonsense import files as commonsense
from flexround.tasks.glue import files as glue
from flexround.tasks.images import cifar10
from flexround.tasks.language import c4, llama2c
from flexround.tasks.language import files as language
from flexround.tasks.squad import files as squad
from flexround.tasks.text import encode
from flexround.tasks.text.task import import_directory
from flexround.tasks.webnlg import files as webnlg
from synthetic import files as small_files
from synthetic import glue as mini_glue
from synthetic import squad as mini_squad

CLASSES = ("ant", "bee", "cat")
PINNED = {"kind": "dataset", "location": "https://example.org/x", "file": "x", "revision": "1", "licence": "MIT"}
networks_of = functools.cache(lambda: load_params("mini").scale.checkpoints)


def inside(name: str, write: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return what writes into a directory of this name."""

    def make(directory: Path) -> None:
        (directory / name).mkdir(parents=True)
        write(directory / name)

    return make


def tsv(directory: Path) -> None:
    """Write a task of GLUE as its own files."""
    for split, file in (("train", "train.tsv"), ("validation", "dev.tsv")):
        rows = mini_glue.make("mrpc", 24, 12, seed=0)[split]
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        lines += [f"{row['label']}\t1\t2\t{row['sentence1']}\t{row['sentence2']}" for row in rows]
        (directory / file).write_text("\n".join(lines) + "\n")


def squad_document() -> dict[str, Any]:
    """Return SQuAD's JSON."""
    articles = []
    for row in mini_squad.make(1, 12, seed=0)["validation"]:
        found = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in found]
        question = {"id": row["id"], "question": row["question"], "answers": answers}
        articles.append({"title": row["title"], "paragraphs": [{"context": row["context"], "qas": [question]}]})
    return {"version": "1.1", "data": articles}


def zipped(directory: Path) -> None:
    """Write it in a zip."""
    with zipfile.ZipFile(directory / "dev-v1.1.json.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dev-v1.1.json", json.dumps(squad_document()))


def lines(rows: list[dict[str, Any]], path: Path) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def posed(directory: Path) -> None:
    """Write posed questions of all forms."""
    lines(
        [{"query": f"Passage: p{i}\nQuestion: is it?", "choices": ["no", "yes"], "gold": i % 2} for i in range(9)],
        directory / "boolq.jsonl",
    )
    lines(
        [{"query": f"Question: g{i}\n", "choices": ["a", "b"], "gold": i % 2} for i in range(9)],
        directory / "piqa.jsonl",
    )
    options = [f"Ann saw {name}" for name in ("Bob", "Eve")]
    lines(
        [{"context_options": options, "continuation": f"run {i}.", "gold": i % 2} for i in range(9)],
        directory / "winogrande.jsonl",
    )
    lines(
        [{"query": f"Question: q{i}", "choices": list("abcd"), "gold": i % 4} for i in range(9)],
        directory / "arc_easy.jsonl",
    )
    text = "".join(f"Act {i}: he goes\n{i % 4}\nup\ndown\nleft\nright\n" for i in range(9))
    (directory / "hellaswag_val_full.txt.bz2").write_bytes(bz2.compress(text.encode()))


def authors(directory: Path) -> None:
    """Write questions as their authors do."""
    choices = {"stem": "which", "choices": [{"text": text, "label": text.upper()} for text in "abcd"]}
    lines(
        [{"id": str(i), "question": choices, "answerKey": "ABCD"[i % 4]} for i in range(9)],
        directory / "arc_easy/ARC-Easy-Test.jsonl",
    )
    lines([{"goal": f"g{i}", "sol1": "a", "sol2": "b"} for i in range(9)], directory / "piqa/valid.jsonl")
    (directory / "piqa/valid-labels.lst").write_text("0\n1\n0\n1\n0\n1\n0\n1\n0\n")
    lines(
        [{"passage": f"p{i}", "question": "is it", "label": bool(i % 2)} for i in range(9)],
        directory / "boolq/val.jsonl",
    )


def questions(*names: str) -> Callable[[Path], Any]:
    """Return what reads the evaluated questions of data sets."""
    return lambda directory: [commonsense.read(directory, name, train=False) for name in names]


def images(directory: Path) -> None:
    """Write an image folder."""
    made = list(data._images())[:6]
    for split in ("train", "val"):
        for number in range(6):
            file = directory / "imagenet" / split / CLASSES[number % 3] / f"{number}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(made[number])


def read_images(directory: Path) -> Any:
    """Decode it as the data and calibrate stages do."""
    options = {"classes": 3, "train_count": 6, "val_count": 6, "resize": 40, "crop": 32}
    task = protocol.build(Task(module="flexround.tasks.images.task:ImageNet", options=options))
    out = directory / "out"
    task.prepare(out, directory)
    return (out / "val_images.npy").read_bytes(), task.calibration(out, 4, 0)


def pickled(path: Path, model: torch.nn.Module, state: Any = None, new: bool = False) -> None:
    """Write a pickled state dict, in the older or the newer format."""
    torch.save(model.state_dict() if state is None else state, path, _use_new_zipfile_serialization=new)


def resnet() -> Any:
    """Return a small ResNet."""
    from flexround.mini import models

    return models.resnet18(width=4)


def mobilenet() -> Any:
    """Return a small MobileNetV2."""
    from flexround.mini import models

    return models.mobilenetv2(width_mult=0.25)


def loaded(model: Any, state: Any) -> Any:
    """Return the weights of a model after a state dict was loaded."""
    load_into(model, state, "file")
    return model.state_dict()


def directory_of(kind: str, files: tuple[str, ...]) -> tuple[Callable[[Path], None], Callable[[Path], Any]]:
    """Return what writes and what reads a Hugging Face directory."""
    name = {"bert": "bert-base", "gpt_neo": "gpt-neo-125m", "llama": "llama-7b"}[kind]
    changes = {"vocab_size": tokenizers.tokenizer(kind).get_vocab_size()}
    changes |= {"bos_token_id": 1} if kind == "llama" else {"tie_word_embeddings": True}

    def settings() -> Any:
        checkpoint = networks_of()[name]
        args = checkpoint.model.args | changes
        return checkpoint.model_copy(update={"model": checkpoint.model.model_copy(update={"args": args})})

    def model() -> Any:
        settled = settings().model
        return imports.load(settled.factory)("classification" if kind == "bert" else "causal-lm", **settled.args)

    def write(directory: Path) -> None:
        networks._directory(settings(), files, directory)
        model().config.save_pretrained(directory)

    def read(directory: Path) -> Any:
        made = model()
        import_directory(made, directory, directory / "out")
        return made.state_dict(), (directory / "out/tokenizer.json").read_bytes()

    return write, read


def hugging_face(kind: str, *files: str) -> Kind:
    """Return a kind of Hugging Face directory."""
    make, read = directory_of(kind, files)
    return Kind(f"directory of {kind}: {files[-1]}", make, read)


def sharded(directory: Path) -> None:
    """Write a LLaMA in shards with an index."""
    model = small("llama", "causal-lm")
    networks._shards(networks._state(model), directory)


def read_sharded(directory: Path) -> Any:
    """Read it tensor by tensor."""
    model = small("llama", "causal-lm")
    shards = Shards(directory, model)
    shards.fill(shards.places)
    return model.state_dict()


def adapter(directory: Path) -> None:
    """Write an adapter of a GPT-2."""
    generator = torch.Generator().manual_seed(0)
    state = {
        f"module.transformer.h.{layer}.attn.c_attn.lora_{name}": torch.randn(shape, generator=generator)
        for layer in range(2)
        for name, shape in (("A", (8, 64)), ("B", (128, 4)))
    }
    torch.save({"model_state_dict": state}, directory / "adapter.pt")


def read_adapter(directory: Path) -> Any:
    """Merge it."""
    from flexround.models import transformer

    model = transformer.gpt2("causal-lm", vocab_size=40, n_embd=64, n_layer=2, n_head=2, n_positions=16)
    merge_checkpoint(model, directory / "adapter.pt")
    return model.state_dict()


def llama(directory: Path) -> None:
    """Write a model and a tokenizer of llama2.c."""
    real_files.write_llama2c(real_files.llama(), directory / "model.bin")
    real_files.write_tokens(directory / "tokens.bin")


def read_llama(directory: Path) -> Any:
    """Import them."""
    model = real_files.llama(seed=1)
    llama2c.import_files(model, directory / "model.bin", directory / "tokens.bin", directory)
    return model.state_dict(), encode.load(directory / "tokenizer.json").encode("once on a bc").ids


def pinned(directory: Path) -> None:
    """Write a directory, a file and a tar whose sha256 is known."""
    (directory / "x").mkdir()
    (directory / "x/a.txt").write_text("one\n")
    (directory / "x/b.txt").write_text("two\n" * 50)
    real_files.images(directory / "x.tar", "train", 2, CLASSES)


def read_pinned(directory: Path) -> Any:
    """Verify them as the fetch and fine-tune stages do."""
    content = b"one\n", b"two\n" * 50
    listed = "".join(
        f"{hashlib.sha256(part).hexdigest()}  {name}.txt\n" for name, part in zip("ab", content, strict=True)
    )
    digest = hashlib.sha256(listed.encode()).hexdigest()
    source = Source.model_validate(PINNED | {"files": ["*.txt"], "sha256": digest})
    return sources.verify("x", source, directory / "x"), (directory / "x/a.txt").read_bytes()


def llama_files(directory: Path) -> None:
    """Write what LLaMA is calibrated on and asked."""
    small_files.commonsense(directory, 60, 2, 12, 12)


KINDS = [
    Kind(
        "GLUE: parquet",
        lambda d: small_files.glue(d, "rte", 48, 12),
        lambda d: [glue.read(d, "rte", split) for split in ("train", "validation")],
    ),
    Kind(
        "GLUE: text", inside("mrpc", tsv), lambda d: [glue.read(d, "mrpc", split) for split in ("train", "validation")]
    ),
    Kind(
        "SQuAD: parquet",
        lambda d: small_files.squad(d, 48, 12),
        lambda d: squad.read(d, "validation"),
    ),
    Kind(
        "SQuAD: JSON",
        lambda d: (d / "dev-v1.1.json").write_text(json.dumps(squad_document())),
        lambda d: squad.read(d, "validation"),
    ),
    Kind("SQuAD: zip", zipped, lambda d: squad.read(d, "validation")),
    Kind(
        "WikiText-2: parquet",
        lambda d: small_files.language(d, "wikitext2", 4, 20),
        lambda d: language.read(d, "wikitext2", "validation"),
    ),
    Kind(
        "WikiText-2: text",
        lambda d: (d / "wiki.test.raw").write_text(" \n = A = \n \n" + " One two é . \n" * 50),
        lambda d: language.read(d, "wikitext2", "test"),
    ),
    Kind(
        "Penn Treebank",
        lambda d: small_files.language(d, "ptb", 400, 100),
        lambda d: [language.read(d, "ptb", split) for split in ("train", "validation")],
    ),
    Kind("C4", llama_files, lambda d: c4.read(d / "c4", "paper", 1, 20), files=("c4/en/*",)),
    Kind(
        "WebNLG",
        lambda d: small_files.webnlg(d, 48, 12),
        lambda d: [webnlg.read(d, split) for split in ("train", "test")],
    ),
    Kind(
        "questions: parquet",
        llama_files,
        lambda d: [commonsense.read(d / "commonsense", "piqa", train) for train in (True, False)],
        files=("commonsense/piqa/*",),
    ),
    Kind("questions: posed", posed, questions("boolq", "piqa", "winogrande", "arc_easy", "hellaswag")),
    Kind("questions: their authors'", authors, questions("arc_easy", "piqa", "boolq")),
    Kind("image folder", images, read_images, files=("imagenet/*",)),
    Kind(
        "tar of images",
        lambda d: real_files.images(d / "test.tar", "test", 4, CLASSES),
        lambda d: cifar10.read(d / "test.tar", 3, None),
    ),
    Kind(
        "PyTorch, older",
        lambda d: pickled(d / "resnet18.pth.tar", resnet()),
        lambda d: loaded(resnet(), read_foreign(d / "resnet18.pth.tar")),
    ),
    Kind(
        "PyTorch, newer",
        lambda d: pickled(d / "resnet18.pth", resnet(), new=True),
        lambda d: loaded(resnet(), read_foreign(d / "resnet18.pth")),
    ),
    Kind(
        "PyTorch, BRECQ's MobileNetV2",
        lambda d: pickled(d / "m.pth.tar", mobilenet(), {"model": networks._flat(mobilenet()), "epoch": 9}),
        lambda d: loaded(mobilenet(), brecq_mobilenetv2(read_foreign(d / "m.pth.tar"))),
    ),
    hugging_face("bert", "config.json", "tokenizer.json", "model.safetensors"),
    hugging_face("gpt_neo", "config.json", "tokenizer.json", "pytorch_model.bin"),
    hugging_face("llama", "config.json", "tokenizer.json", "model-*.safetensors"),
    Kind("safetensors in shards", sharded, read_sharded),
    Kind("LoRA adapter", adapter, read_adapter),
    Kind("llama2.c", llama, read_llama),
    Kind("directory whose sha256 is known", pinned, read_pinned, pinned=True, files=("x/*",)),
]
