"""Quantize a text model from a Hugging Face directory, and export it for other tools."""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from flexround import imports
from flexround.errors import InputError, SettingsError
from flexround.io import artifacts
from flexround.library import auto_blocks, card, probe, settings
from flexround.library.block_check import TRIED, check
from flexround.library.quantize import fingerprint
from flexround.library.quantized import EXPORTS, READERS, load, read_saved, verified, write_export, write_record
from flexround.machine import hardware, provenance
from flexround.machine.seeding import derive
from flexround.models import structure, tokenizer_files
from flexround.models.blocks import Block
from flexround.models.tensors import weightless
from flexround.models.tokenizer_files import LOCAL
from flexround.models.trace import standing_in
from flexround.models.weights import ForeignError, Shards, check_finite
from flexround.reconstruct import cache, codes
from flexround.reconstruct.engine import earlier, left, reconstruct
from flexround.reconstruct.preflight import preflight
from flexround.reconstruct.reconstruction import Reconstruction, Resident, Streamed, Weights
from flexround.reconstruct.state import State
from flexround.settings.validation import parsed
from flexround.tasks import encode
from flexround.tasks.protocol import Inputs

log = logging.getLogger(__name__)
COMPANIONS = (
    *("config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"),  # in older directories
)
SYMMETRIC = "the shell command: other tools read packed weights of symmetric grids alone"
LENGTH = 2048  # tokens in a block of text
TABLES = "about tables and settings: flexround compare --help, flexround check --help"
CHECKED = 64  # tokens of the input for the check of written files
IN_MEMORY = 4  # models that an export and its comparison hold
TRACED = {"input_ids": torch.ones(2, 8, dtype=torch.long)}  # any token ids: a graph depends only on their shape


def parser() -> argparse.ArgumentParser:
    """Return the command line; the arguments' ``run`` is the function of the command."""
    arguments = argparse.ArgumentParser(prog="flexround", description=__doc__, epilog=TABLES)
    arguments.add_argument("--version", action="version", version=metadata.version("flexround"))
    commands = arguments.add_subparsers(required=True, metavar="{quantize,export,recipes}")
    _quantize_arguments(commands)
    made = commands.add_parser("recipes", help="list the recipes that quantize takes")
    made.set_defaults(run=recipes)
    about = "write a quantized network in a format that others load, block by block where the format allows"
    made = commands.add_parser("export", help=about, description=about)
    made.set_defaults(run=export)
    made.add_argument("model", type=Path, help="directory that flexround quantize wrote")
    made.add_argument("--format", required=True, choices=EXPORTS)
    made.add_argument("--out", type=Path, required=True, help="new directory")
    return arguments


def _quantize_arguments(commands: Any) -> None:
    """Add the command ``quantize``."""
    about = "quantize a model, block by block from its files"
    made = commands.add_parser("quantize", help=about, description=about)
    made.set_defaults(run=quantize)
    made.add_argument("model", type=Path, help="directory with config.json, safetensors and a tokenizer")
    made.add_argument("--recipe", default="b-flexround-w4", help="one of `flexround recipes` (%(default)s)")
    made.add_argument("--scale", default="paper", help="its hyper-parameters: paper, short, a YAML file (%(default)s)")
    made.add_argument("--text", type=Path, required=True, help="UTF-8 file to calibrate on")
    made.add_argument("--out", type=Path, required=True, help="directory of the quantized network")
    made.add_argument("--samples", type=int, default=128, help="blocks of text (%(default)s)")
    made.add_argument("--length", type=int, help=f"tokens of a block ({LENGTH}, or the model's maximum)")
    made.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    made.add_argument("--device", help="where it runs; a GPU if there is one")
    made.add_argument("--state", type=Path, default=Path(".state"), help="directory of unfinished work (%(default)s)")
    made.add_argument("--gpu-cache-mb", type=int, help="GPU memory for activations; half of it if not given")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a hyper-parameter with another value than the scale's",
    )
    made.add_argument("--preflight", action="store_true", help="print time and memory, and write nothing")


def recipes(_: argparse.Namespace) -> None:
    """Print name, method, bits and setting of each recipe without surgery of convolutions."""
    for name, recipe in settings.params("paper").recipes.recipes.items():
        if recipe.rounding and not recipe.preprocess:
            bits = f"W{recipe.w_bits}" + (f"A{recipe.a_bits}" if recipe.a_bits else "")
            print(f"{name:32}{recipe.rounding:20}{bits:8}setting {recipe.setting}")


def quantize(arguments: argparse.Namespace) -> None:
    """Quantize a model, or print the time and memory that it would take.

    Raises:
        SettingsError: an unknown scale, recipe or hyper-parameter.
        InputError: a model, text or directory is unusable.
    """
    device = settings.chosen_device(arguments.device)
    params = settings.params(arguments.scale)
    name, recipe = settings.recipe(params, arguments.recipe)
    if recipe.preprocess:
        raise SettingsError(f"recipe {name}: preprocess is for networks with batch norms; choose another")
    if arguments.out.is_file() or (arguments.out.exists() and any(arguments.out.iterdir())):
        raise InputError(f"{arguments.out}: not empty; choose another directory")
    length = _length(arguments.model, arguments.length)
    with weightless():
        model: Any = network(arguments.model)
    family, own = settings.family(model, TRACED["input_ids"]), _values(arguments.set)
    hyper, sources = settings.resolve(params, name, recipe, family, arguments.samples, device, own)
    if sources["w_scheme"] in {rule.source for rule in params.defaults.hyper}:
        hyper, sources = hyper.model_copy(update={"w_scheme": "symmetric"}), sources | {"w_scheme": SYMMETRIC}
    exports = dict.fromkeys(EXPORTS, "possible") | settings.unfit(recipe, hyper)
    log.info("exports: %s", "; ".join(f"{kind}: {words}" for kind, words in exports.items()))
    samples = calibration(arguments.model, arguments.text, arguments.samples, length, arguments.seed)
    model, files = _opened(arguments.model, model)
    blocks, weights = _cut(model, files, family, samples, device)
    work = Reconstruction(
        model=model,
        blocks=blocks,
        weights=weights,
        recipe=recipe,
        hyper=hyper,
        rounding=settings.rounding(params, recipe),
        seed_parts=("library", name, arguments.seed),
        device=device,
    )
    directory = arguments.state / f"{arguments.model.resolve().name}-{name}"
    gpu_bytes = cache.limit(device, arguments.gpu_cache_mb)
    if arguments.preflight:
        forecast = dataclasses.asdict(preflight(work, samples, gpu_bytes))
        print(json.dumps(forecast | {"exports": exports}, indent=1))
        return
    read_files = files.files if files else sorted(arguments.model.glob("*model*.[sbj]*"))  # safetensors, bin, json
    inputs = {path.name: artifacts.sha256(path) for path in read_files}
    computes = artifacts.sha256(arguments.model / "config.json"), transformers.__version__  # beside its tensors
    read = json.dumps([inputs, computes]) + samples.numpy().tobytes().hex()
    with State(directory, fingerprint(work, read)).opened() as state:
        report = reconstruct(work, samples, state, gpu_bytes)
        origin = card.origin(name, str(recipe.rounding), str(arguments.model), samples, left(work, report))
        for clause in origin.left:
            log.warning("%s", clause)
        with artifacts.new_directory(arguments.out) as new:
            companions = artifacts.copy_existing(arguments.model, new, COMPANIONS)
            given = {"recipe": recipe, "hyper": hyper, "hyper_sources": sources, "origin": origin}
            facts = card.Facts(**given, folded={})
            state.publish(new, companions, **facts.model_dump(mode="json"), inputs=inputs)
            seen = probe.Input.of(samples[:, 0, :CHECKED])
            output = _output(work, state, seen.draw().to(device))
            write_record(new, facts, report, model, provenance.environment(device), seen, output)
    log.info("%s: done; flexround.load reads it", arguments.out)


@dataclasses.dataclass
class _Finished:
    """The weights of a network whose blocks are all finished."""

    work: Reconstruction
    state: State

    @contextlib.contextmanager
    def block(self, index: int, again: bool) -> Iterator[None]:
        """Give a block its quantized weights inside the context."""
        with self.work.weights.block(index, again):
            codes.apply(earlier(self.state, index), self.work.model, [self.work.blocks[index]], self.work.device)
            yield


@torch.no_grad()
def _output(work: Reconstruction, state: State, x: Tensor) -> probe.Output:
    """Return the quantized network's output for token ids (1, T), with one block in memory at a time."""
    with work.weights.surroundings(), _read_when_called(work.blocks, _Finished(work, state)):
        return probe.Output.of(work.model, work.model(x))


class _Parts(collections.UserDict[str, Any]):
    """The parts of a stored network by file name; each part is read when accessed."""

    def __getitem__(self, name: str) -> codes.Part:
        return codes.read(self.data[name])


def export(arguments: argparse.Namespace) -> None:
    """Write a quantized network in a format that other tools load.

    Raises:
        InputError: the directory has no network, or the format can't hold the network.
    """
    directory, kind = arguments.model, arguments.format
    saved = read_saved(directory)
    stored_type = configuration(directory).dtype or torch.float32  # type of the original network
    with weightless():
        model = network(directory, stored_type)
    if kind == "onnx":  # traced
        made, example = load(directory, network(directory)), [TRACED]
    elif IN_MEMORY * sum(value.nbytes for value in model.parameters()) < hardware.free_bytes():
        made, example = load(directory, network(directory, stored_type)), []
    else:
        log.info("%s: exported block by block, and not read again: it takes too much memory", directory)
        example = []
        made = saved.network(model, _Parts({path.name: path for path in codes.files(directory)}))
    with artifacts.new_directory(arguments.out) as new:
        artifacts.copy_existing(directory, new, COMPANIONS)
        write_export(made, kind, new, *example)
        verified(made, kind if kind in READERS else None, new, 3)


def configuration(directory: Path) -> Any:
    """Return transformers' configuration of the model in a directory; InputError if the directory has none."""
    path = directory / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: missing; give a directory in Hugging Face's format")
    found = transformers.AutoConfig.from_pretrained(directory, **LOCAL)
    found._attn_implementation = None  # the stored choice may need a package or a GPU
    return found


def network(directory: Path, kind: torch.dtype = torch.float32) -> nn.Module:
    """Return the model that a directory describes, with arbitrary values of a floating type.

    Its class is transformers' class named by ``architectures``, or else the causal language model's class.
    """
    config = configuration(directory)
    named: Any = getattr(transformers, (config.architectures or [""])[0], None)
    if isinstance(config, getattr(named, "config_class", None) or ()):
        return named._from_config(config, dtype=kind).eval()
    return transformers.AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=False).eval()


def _length(directory: Path, asked: int | None) -> int:
    """Return the number of tokens in a block of text; InputError if the directory's model has fewer positions."""
    positions = getattr(configuration(directory).get_text_config(), "max_position_embeddings", None)
    if asked and positions and asked > positions:
        raise InputError(f"--length {asked}: {directory} supports at most {positions} tokens; use --length {positions}")
    named = directory / "tokenizer_config.json"  # RoBERTa has fewer tokens than positions
    most = artifacts.read_json(named).get("model_max_length") if named.is_file() else None
    return asked or min(LENGTH, positions or LENGTH, int(most or LENGTH))


def calibration(directory: Path, text: Path, samples: int, length: int, seed: int) -> Tensor:
    """Return random blocks of a text, int64 (samples, 2, length): token ids, and zeros as types.

    Raises:
        InputError: no text, no tokenizer, or too little text.
    """
    content = artifacts.read_text(text)
    tokenizer = tokenizer_files.find(directory)  # blocks of text need no padding token; Llama 3's tokenizer has none
    found = list(encode.blocks([content], tokenizer, length, encode.CHUNK))
    ids = torch.cat([torch.from_numpy(part) for part in found]).long()
    if samples > len(ids):
        raise InputError(
            f"{text}: {len(ids)} blocks of {length} tokens, --samples asks for {samples}; lower one of them"
        )
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(derive("blocks of text", seed)))
    chosen = ids[order[:samples]]
    return torch.stack([chosen, torch.zeros_like(chosen)], 1)


def _opened(directory: Path, model: Any) -> tuple[nn.Module, Shards | None]:
    """Return a model without values and its directory's files, or a model with values converted by transformers.

    Conversion is needed for older models' names, for weights that another class saved, and for experts: files hold
    them one by one, models in one tensor.

    Raises:
        InputError: as in ``Shards``, if transformers can't read the files either, or doesn't use all tensors of layers.
    """
    try:
        return model, Shards(directory, model)
    except ForeignError as error:
        if getattr(model.config, "quantization_config", None):
            raise
        log.info("%s: all weights are read into memory by transformers (%s)", type(model).__name__, error)
        given = {"config": model.config, "dtype": torch.float32, "output_loading_info": True}
        try:
            found, report = type(model).from_pretrained(directory, **given, **LOCAL)
        except Exception:  # whatever transformers raises on other people's files
            raise error from None
        if report["missing_keys"] or any(re.search(r"\.\d+\.", name) for name in report["unexpected_keys"]):
            raise
    for name, value in found.state_dict().items():
        check_finite(name, value, directory)
    return found.eval(), None


def _cut(
    model: nn.Module, files: Shards | None, family: settings.Family, samples: Tensor, device: torch.device
) -> tuple[list[Block], Weights]:
    """Return the blocks of a model for samples (N, 2, T), with weights read block by block if possible.

    Otherwise all weights are read into memory, and the library cuts the model.
    """
    adapter = imports.load(family.blocks) if family.blocks else None
    if files:
        try:
            blocks = (adapter or structure.blocks)(model)
            weights = Streamed(files, blocks, device)
            return blocks if adapter else _compared(model, blocks, weights, samples[:1].to(device)), weights
        except (SettingsError, InputError) as error:
            log.info("%s: all weights are read into memory (%s)", type(model).__name__, error)
            files.fill(files.places, device)
    model.to(device)  # also buffers that no file holds
    blocks = adapter(model) if adapter else auto_blocks.automatic(model, samples[:TRIED].to(device))
    return blocks, Resident(blocks)


@torch.no_grad()
def _compared(model: nn.Module, blocks: Sequence[Block], weights: Weights, row: Tensor) -> list[Block]:
    """Return blocks with streamed weights, only with sites of layers that run once for a row (1, 2, T).

    Raises:
        InputError: the blocks can't run without other weights, or the network computes something else.
    """
    calls = collections.Counter[str]()
    with (
        hardware.enough(f"{type(model).__name__}, compared with its blocks", "a smaller --length"),
        contextlib.ExitStack() as hooks,
    ):
        with weights.surroundings():
            x = blocks[0].before(row)
        for inner, module in blocks[0].module.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, inner=inner: calls.update([inner])))
        with weights.block(0, again=False):  # only this block's weights, as during learning
            blocks[0](x)
        hooks.close()
        with weights.surroundings(), _read_when_called(blocks, weights):
            check(model, blocks, Inputs(row), row.device)
    inside = [pair for block in blocks for pair in block.module.named_modules()]
    return auto_blocks.with_sites(blocks, {module for inner, module in inside if calls[inner] == 1})


@contextlib.contextmanager
def _read_when_called(blocks: Sequence[Block], weights: Weights | _Finished) -> Iterator[None]:
    """Read the weights of each block when its module runs, and free them afterwards."""

    def reading(index: int, own: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        with weights.block(index, again=False):
            return own(*arguments, **keywords)

    with contextlib.ExitStack() as undo:
        for index, block in enumerate(blocks):
            forward = functools.partial(reading, index, block.module.forward)
            undo.enter_context(standing_in(block.module, forward))
        yield


def _values(given: list[str]) -> dict[str, Any]:
    """Return the hyper-parameters in ``KEY=VALUE`` arguments, each value parsed as YAML."""
    pairs = [each.partition("=") for each in given]
    return {key: parsed(text) for key, _, text in pairs}
