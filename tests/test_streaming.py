"""A model that is never whole in memory: its files, one block at a time, and where the activations lie."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import test_state
import tiny
import torch
import toy
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from flexround.errors import InputError
from flexround.models import transformer
from flexround.models import weights as weights_module
from flexround.models.blocks import Block
from flexround.models.tensors import places, weightless
from flexround.models.weights import INDEX, Shards
from flexround.reconstruct import cache, codes, engine, phases
from flexround.reconstruct.preflight import preflight
from flexround.reconstruct.reconstruction import Streamed
from flexround.reconstruct.state import State
from flexround.settings.schema import Hyper

CPU = torch.device("cpu")
CONFIG = {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "initializer_range": 0.3}
HYPER = toy.HYPER | {"samples": 12, "batch": 4, "iters": 8, "a_iters": 8, "a_init_samples": 6}
HYPER |= {"stem_bits": "low", "head_bits": "low", "head_input_bits": "low", "w_scheme": "asymmetric"}


def model(**config):
    return tiny.make("gpt_neo", seed=5, **CONFIG | config)


def shells(**config):
    with weightless():
        return model(**config)


def tokens():
    ids = torch.randint(50, (12, 1, 12), generator=torch.Generator().manual_seed(2))
    return torch.cat([ids, torch.zeros_like(ids)], 1)


def store(directory, state):
    """Write tensors as the hub does: shards and an index."""
    files = {name: f"model-{number % 3:05d}.safetensors" for number, name in enumerate(sorted(state))}
    directory.mkdir(exist_ok=True)
    for file in set(files.values()):
        save_file({name: state[name].clone() for name in files if files[name] == file}, directory / file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return directory


@pytest.fixture
def files(tmp_path):
    return store(tmp_path / "files", model().state_dict())


def job(source, recipe, **hyper):
    """Return a job on a model in memory, or streamed from a directory."""
    settings = Hyper.model_validate(HYPER | hyper)
    if not isinstance(source, Path):
        return toy.job_of(source, transformer.gpt_neo_blocks(source), recipe, settings)
    shards = Shards(source, shells())
    blocks = transformer.gpt_neo_blocks(shards.model)
    return toy.job_of(shards.model, blocks, recipe, settings, Streamed(shards, blocks, CPU))


def published(made, directory):
    """Reconstruct, and return the bytes of every file of the result."""
    with State(directory / "state/run", "f" * 16).opened() as state:
        engine.reconstruct(made, tokens(), state)
        state.publish(directory / "out")
    return {path.name: path.read_bytes() for path in (directory / "out").iterdir()}


RECIPES = [toy.recipe("Q", "flexround", 4, 8), toy.recipe("B", "adaround", 3, 8), toy.recipe("B", "gptq", 3)]


@pytest.mark.parametrize("recipe", RECIPES, ids=["Q", "B", "GPTQ"])
def test_streamed_and_resident_give_the_same_files(tmp_path, files, recipe):
    whole, ids = model(), tokens()[:, 0]
    expected = published(job(whole, recipe), tmp_path / "resident")
    assert published(job(files, recipe), tmp_path / "streamed") == expected
    assert len(expected) == 2 + 4 * (1 if recipe.setting == "Q" or not recipe.a_bits else 2)
    loaded = shells()
    codes.load(tmp_path / "streamed/out", loaded, transformer.gpt_neo_blocks(loaded))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, whole(ids).logits)
        assert not torch.equal(loaded(ids).logits, model()(ids).logits)


def test_one_block_has_weights_at_a_time(tmp_path, files, monkeypatch):
    made, seen, timed = job(files, RECIPES[0], iters=1), [], engine._timed

    def filled():
        found = places(made.model).items()
        return [name for name, place in found if not (getattr(*place).is_meta or name.endswith("raw_step"))]

    def looking(phase, index, *rest):
        seen.append((index, filled()))
        return timed(phase, index, *rest)

    monkeypatch.setattr(engine, "_timed", looking)
    published(made, tmp_path)
    names = model().state_dict()
    assert seen == [(index, [name for name in names if f".h.{index}." in name]) for index in range(4)]
    assert not filled()


# files


def test_tied_embeddings_may_be_stored_once(tmp_path):
    state = model().state_dict()
    state.pop("lm_head.weight")
    shards = Shards(store(tmp_path / "tied", state), shells())
    shards.fill(shards.places, CPU)
    assert torch.equal(shards.model.lm_head.weight, state["transformer.wte.weight"])
    assert shards.model.lm_head.weight is shards.model.transformer.wte.weight, "or training would move it twice"
    with pytest.raises(InputError, match=r"missing: lm_head\.weight"):
        Shards(tmp_path / "tied", shells(tie_word_embeddings=False))


# resume


@pytest.mark.parametrize("recipe", RECIPES[:2], ids=["Q", "B"])
def test_killed_at_random_moments_it_gives_the_same_bits(tmp_path, files, recipe):
    expected = published(job(files, recipe), tmp_path / "straight")
    for moment in (3, 9):
        code = test_state.killed_after(moment, lambda: published(job(files, recipe), tmp_path / "killed"))
        assert code == -signal.SIGKILL
    assert published(job(files, recipe), tmp_path / "killed") == expected


# caches


NEEDED = cache.HELD * 10 * 100 * 4  # bytes


@pytest.mark.parametrize(
    ("kind", "gpu", "most", "place"),
    [
        (torch.float32, None, None, "in memory"),
        (torch.float32, 2 * NEEDED, None, "on the GPU"),
        (torch.float32, 2 * NEEDED - 1, None, "in page-locked memory"),
        (torch.bfloat16, NEEDED, None, "on the GPU"),
        (torch.float32, 2 * NEEDED, 0, "in page-locked memory"),
    ],
)
def test_the_place_of_caches_follows_from_their_bytes(monkeypatch, kind, gpu, most, place):
    """Not from what lies in a memory already."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gpu))
    device = torch.device("cuda") if gpu else CPU
    found = cache.plan(100, 10, device, kind, cache.limit(device, most))
    assert str(found) == place
    assert cache.limit(device, jobs=2) == (gpu // 4 if gpu else 0), "half of what each job of a GPU has"


# writing and reading in other types


def test_what_is_saved_in_shards_is_read_again(tmp_path):
    whole = model(tie_word_embeddings=True).half()
    names = weights_module.save(whole, tmp_path, size=2000)
    assert len(names) > 4
    assert sum((tmp_path / name).stat().st_size for name in names[1:]) < 1.5 * sum(p.nbytes for p in whole.parameters())
    shards = Shards(tmp_path, shells(tie_word_embeddings=True))
    assert {path.name for path in shards.files} == set(names)
    for kind in (torch.float32, torch.float16):
        shards.fill(shards.places, CPU, kind)
        assert {parameter.dtype for parameter in shards.model.parameters()} == {kind}
        for (name, value), other in zip(shards.model.state_dict().items(), whole.state_dict().values(), strict=True):
            assert torch.equal(value.half(), other), name


# precision


@pytest.mark.parametrize("half", [{"precision": "bfloat16"}, {"cache_dtype": "bfloat16"}], ids=str)
def test_half_precision_learns_as_well_with_float32_masters(tmp_path, half):
    recipe, settings, seen = toy.recipe("B", "flexround", 3), {"iters": 50}, set()
    _, full, _ = toy.run(toy.job(recipe, **settings), tmp_path / "full")
    hook = register_optimizer_step_pre_hook(
        lambda adam, *_: seen.update(p.grad.dtype for group in adam.param_groups for p in group["params"])
    )
    found, records, _ = toy.run(toy.job(recipe, **settings, **half), tmp_path / "half")
    hook.remove()
    assert seen == {torch.float32}
    assert all(value.dtype == torch.float32 for key, value in found.items() if key.endswith("step"))
    assert records[2]["loss_after"] != full[2]["loss_after"]
    assert records[2]["error_hard"] == pytest.approx(full[2]["error_hard"], rel=0.25)


def test_all_rows_have_the_precision_and_learning_alone_tf32(tmp_path, monkeypatch):
    """Targets and carried activations too, and the initial steps, not only the iterations."""
    rows, learned, flags = set(), set(), torch.backends.cuda.matmul
    through, optimise = phases.Phase.through, phases.optimise

    def watched(phase, call, x):
        if isinstance(call, Block):  # the glue in front multiplies nothing
            half = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
            rows.add((half, flags.allow_tf32))
        return through(phase, call, x)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(phases.Phase, "through", watched)
    monkeypatch.setattr(phases, "optimise", lambda *a: [learned.add(flags.allow_tf32), optimise(*a)][1])
    for kind in ("bfloat16", "tf32"):
        rows.clear(), learned.clear()
        toy.run(toy.job(toy.recipe("B", "flexround", 4, 8), precision=kind, iters=2, a_iters=2), tmp_path / kind)
        assert rows == {(torch.bfloat16 if kind == "bfloat16" else False, False)}
        assert learned == {kind == "tf32"}


# preflight


@pytest.mark.parametrize("recipe", RECIPES[1:], ids=["B", "GPTQ"])
def test_preflight_forecasts_and_writes_nothing(tmp_path, files, recipe):
    made = job(files, recipe)
    found = preflight(made, tokens())
    assert (found.block, found.caches) == ("h.0", "in memory")
    assert found.peak_mb > 10
    iterations = 4 * HYPER["iters"] + (4 * HYPER["a_iters"] if recipe.setting == "B" and recipe.a_bits else 0)
    assert found.hours * 3600 > iterations * found.iteration_seconds > 0
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_an_index_of_shards_does_not_lead_out_of_its_directory(tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"weight": "../../elsewhere/model.safetensors"}}))
    assert weights_module._stored(tmp_path) == {"weight": tmp_path / "model.safetensors"}
