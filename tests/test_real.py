"""The scale real, small: from sources in their real formats to its tables, figures and claims."""

import csv

import numpy as np
import pytest
import real_files
import torch
from stage_calls import Work

from flexround.models import cifar_resnet, efficientnet_lite, mobilenetv2, released, tokenizer_files
from flexround.results.render import budgets, report_page
from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from flexround.settings.plan import Plan
from flexround.tasks import commonsense

STORIES = ["once abc ab", "abc abc on", "ab once once", "on on abc a b c", "once on", "abc ab ab ab"]
NETWORKS = [("cifar10", "resnet20"), ("cifar10", "resnet56"), ("tinystories", "stories260k")]
NETWORKS += [("photographs", "efficientnet-lite0"), ("glue-stsb", "minilm"), ("commonsense", "smollm2-135m")]
NETWORKS += [("imagenet", "mobilenetv2")]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The scale with its sources put there by hand, of which no hash is pinned."""
    root = tmp_path_factory.mktemp("real")
    place = root / "results/sources"
    real_files.images(place / "cifar10/train.tar", "train", 8)
    real_files.images(place / "cifar10/test.tar", "test", 4, seed=1)
    for seed, name in enumerate(("resnet20-12fca82f", "resnet56-4bfd9763")):
        torch.manual_seed(seed)
        state = cifar_resnet.resnet(8, num_classes=5).state_dict()
        torch.save(
            {"state_dict": {f"module.{key}": value for key, value in state.items()}}, place / f"cifar10/{name}.th"
        )
    real_files.samples(place / "photographs/samples.tar")
    real_files.photographs(place / "photographs/photographs.tar")
    real_files.validation(place / "photographs/validation.tar")
    real_files.write_mobilenetv2(place / "mobilenetv2", 3)
    (place / "efficientnet").mkdir()
    state = efficientnet_lite.EfficientNetLite0(num_classes=3).state_dict()
    torch.save(state, place / "efficientnet/efficientnet-lite0-57934424.pth")
    real_files.write_llama2c(real_files.llama(), place / "stories260K/stories260K.bin")
    real_files.write_tokens(place / "stories260K/tok512.bin")
    (place / "tinystories").mkdir()
    (place / "tinystories/tiny.utf8").write_text("\n<|endoftext|>\n".join(STORIES * 8))
    real_files.write_sentence_bert(place / "minilm", STORIES)
    (place / "glue-files/stsb").mkdir(parents=True)
    for name in ("train", "dev"):
        lines = (f"\t\t\t\t{number % 6}\t{STORIES[number % 6]}\t{STORIES[number % 4]}\n" for number in range(40))
        (place / f"glue-files/stsb/sts-{name}.csv").write_text("".join(lines))
    real_files.write_gguf(real_files.llama(**real_files.GGUF), place / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    for name, content in real_files.POSED.items():
        rows = content * 4 if name == "hellaswag" else [content] * 4
        real_files.write_questions(place / commonsense.POSED[name][0], rows)
    for name in ("wikitext2-raw/wiki.test.raw", "c4-sample/c4.utf8"):
        (place / name).parent.mkdir()
        (place / name).write_text("\n".join(STORIES * 8))
    params = load_params(str(ROOT / "tests/real_scale.yaml"))
    unpinned = {
        name: source.model_copy(update={"sha256": None, "bytes": None}) for name, source in params.sources.items()
    }
    return Work(None, root, params._replace(sources=unpinned))


def test_every_network_is_imported_and_quantized(work):
    for task, checkpoint in NETWORKS:
        assert work.metrics(task, checkpoint, "b-flexround-w4")["n_examples"]
    assert (work.weights(*NETWORKS[2]) / "tokenizer.json").is_file()
    rows = (work.data("tinystories") / "validation.jsonl").read_text().splitlines()
    assert len(rows) == len(STORIES) * 8 / 2
    assert work.metrics(*NETWORKS[4])["n_examples"] == {"pearson": 40, "spearman": 40}
    assert tokenizer_files.load(work.weights(*NETWORKS[4]) / "tokenizer.json").truncation is None
    counts = work.metrics(*NETWORKS[5], "b-flexround-w4")["n_examples"]
    assert counts == {"ppl": 4} | dict.fromkeys(commonsense.POSED, 3)
    counts = work.metrics(*NETWORKS[6])["n_examples"]
    assert counts == {"top1": 5, "top5": 5, "top1_photographs": 2, "top1_validation": 3}


def test_tables_claims_report_and_figures_are_its_own(work):
    for task, checkpoint in NETWORKS:
        work.evaluated(task, checkpoint, "q-rtn-w4a8" if checkpoint == "minilm" else "b-flexround-w4")
    for number in (1, 6):
        path = work.do("tabulate", number, out=f"results/real-tiny/real{number}.csv")
        lines = list(csv.DictReader(path.read_text().splitlines()))
        assert {line["status"] for line in lines} == {"computed", "missing"}
        assert {line["published"] for line in lines} == {""}
    path = work.do("claims", out="results/real-tiny/claims.csv")
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert {line["place"] for line in lines} == {*(f"real {number}" for number in range(1, 10)), "figure 7"}
    assert {line["published_margin"] for line in lines} == {""}
    assert "on released networks" in report_page.render(work.root, work.plan)


def test_a_figure_of_budgets_has_a_point_for_each_run(work):
    figure = work.plan.params.figures[9]
    panel = figure.panels[0].model_copy(update={"iterations": (50,), "recipes": {"FlexRound": "b-flexround-w4"}})
    work.evaluated("imagenet", "mobilenetv2", "b-flexround-w4-i50")
    shown = figure.model_copy(update={"panels": (panel,)})
    (point,) = points = budgets.collect(shown, "real-tiny", work.root / "results")
    assert (point.method, point.iterations, point.metric) == ("FlexRound", 50, "top1")
    assert 0 < point.error < 1 < point.seconds
    axes = budgets.draw(points, "Budgets", "real-tiny").axes
    assert [each.get_xlabel() for each in axes] == ["iterations for a block"] * 2 + ["CPU seconds"] * 2


def test_each_scale_has_tables_and_pinned_sources():
    real, mini = Plan(load_params("real")), Plan(load_params("mini"))
    names = [real.params.tables[number].name for number in real.complete_tables()]
    assert names == [f"real{number}" for number in range(1, 10)]
    assert real.complete_figures() == [3, 4, 6, 7, 8, 9]
    assert len(mini.complete_tables()) == 24
    assert mini.complete_figures() == [3, 4, 5, 6, 7]
    scale, sources = real.params.scale, real.params.sources
    names = {name for each in (*scale.checkpoints.values(), *scale.tasks.values()) for name in each.sources}
    assert all(sources[name].sha256 and sources[name].path for name in names)


VECTORS = ROOT / "results/sources/mobilenetv2/test_data_set"


@pytest.mark.skipif(not VECTORS.exists(), reason="the network of table real8 has not been fetched")
def test_mobilenetv2_gives_the_outputs_published_with_it(tmp_path):
    model = mobilenetv2.folded()
    released.import_mobilenetv2(model, VECTORS.parent / "weights", tmp_path)
    for pair in sorted(VECTORS.iterdir()):
        x, expected = (torch.from_numpy(np.load(pair / f"{name}_0.npy")) for name in ("input", "output"))
        with torch.no_grad():
            found = model.eval()(x)
        assert found.argmax() == expected.argmax()
        assert (found - expected).abs().max() < 0.08, "of up to 18; the classifier's weights have 8 bits"
