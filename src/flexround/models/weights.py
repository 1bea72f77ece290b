"""Files of weights: state dicts and adapters of others, and safetensors, whole or in shards, which stay in place."""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flexround.errors import InputError, some
from flexround.io import artifacts
from flexround.models.tensors import Place, places, put, untied

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
CPU = torch.device("cpu")
ADAPTER_ALPHA = 32.0  # microsoft/LoRA's release was trained with it
_ADAPTER_KEY = re.compile(r"(?:.+\.)?h\.(\d+)\.attn\.c_attn\.lora_([AB])")
SHARD_BYTES = 5 * 10**9
_SHOWN = 3  # names listed in a message
_COMPUTED = ".rotary_emb.inv_freq"  # old LLaMA files hold these buffers, which the model computes


class ForeignError(InputError):
    """Files that hold a model's weights in another form, which the library that wrote them may convert."""


def read_foreign(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint, safetensors or pickled, onto the CPU; nothing in the file is executed.

    A pickled dict with the weights under ``state_dict``, ``model_state_dict`` or ``model`` is unwrapped, as is the
    ``module.`` prefix that ``nn.DataParallel`` puts before every name.
    """
    if path.suffix == ".safetensors":
        return load_file(path)
    state = torch.load(path, weights_only=True, map_location=CPU)
    nested = (state.get(key) for key in ("state_dict", "model_state_dict", "model"))
    state = next((inner for inner in nested if isinstance(inner, Mapping)), state)
    prefix = "module." if all(name.startswith("module.") for name in state) else ""
    return {name.removeprefix(prefix): value for name, value in state.items()}


@torch.no_grad()
def merge_checkpoint(model: Any, path: Path) -> None:
    """Add an adapter of microsoft/LoRA's release to the ``c_attn`` weights of a GPT-2 (specification 8).

    One of rank r changes query and value by A and B, ``ADAPTER_ALPHA / r`` times.

    Args:
        model: Hugging Face's ``GPT2Model`` or one with a head; not merged with any adapter before.
        path: a ``.pt`` with A (2 r, d) and B (2 d, r) of every layer under ``model_state_dict``.

    Raises:
        InputError: no adapter of a GPT-2 with so many layers.
    """
    layers = [block.attn.c_attn for block in model.base_model.h]
    state = read_foreign(path)
    found = {match.groups(): value for key, value in state.items() if (match := _ADAPTER_KEY.fullmatch(key))}
    if found.keys() != {(str(i), name) for i in range(len(layers)) for name in "AB"}:
        raise InputError(f"{path}: not an adapter of this GPT-2 with {len(layers)} layers; take the one of this model")
    for i, layer in enumerate(layers):
        a, b = found[str(i), "A"].float(), found[str(i), "B"].float()
        change = ADAPTER_ALPHA / b.shape[1] * _weight_change(a, b)
        layer.weight.copy_(layer.weight.float() + change.to(layer.weight.device))


def _weight_change(a: Tensor, b: Tensor) -> Tensor:
    """Return (d, 3 d), columns of query, key (all 0) and value, for A (2 r, d) and B (2 d, r), rows of query first."""
    rank, width = b.shape[1], a.shape[1]
    query, value = b[:width] @ a[:rank], b[width:] @ a[rank:]
    return torch.cat([query, torch.zeros_like(query), value]).T


def load_known(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load a pretrained network of the same kind into ``model``; a head or pooler that it lacks stays as it is.

    Transformers keep everything but the head under ``base_model_prefix``. Of one head of both, a language model's, the
    weights are taken too. See ``load_into``.
    """
    prefix = f"{model.base_model_prefix}."
    own = model.state_dict()
    new = {name for name in own if not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")}
    known = {name: value for name, value in state.items() if name in own}
    load_into(model, {name: own[name] for name in new} | known, where)


def load_into(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load ``state`` into ``model``: every tensor present, none left over, shapes equal, all values finite.

    Files of before PyTorch 0.4.1 lack the counts of batches, which are not used at evaluation.

    Args:
        where: the file or source named in messages.

    Raises:
        InputError: naming the tensors.
    """
    counts = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    try:
        model.load_state_dict(counts | dict(state))
    except RuntimeError as error:
        raise InputError(f"{where}: {error}") from error
    for name, value in model.state_dict().items():
        check_finite(name, value, where)


def check_finite(name: str, value: Tensor, where: object) -> None:
    """Raise InputError if a tensor, of any shape, of the file or source ``where`` holds NaN or Inf."""
    if not torch.isfinite(value).all():
        raise InputError(f"{where}: {name} holds NaN or Inf; the file is damaged or its training diverged")


class Shards:
    """The weights of one model in files, where they stay until they are needed.

    Args:
        directory: holds ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.
        model: whose tensors are filled; may be without weights.

    Raises:
        ForeignError: no such files, or tensors that are missing or left over.
    """

    def __init__(self, directory: Path, model: nn.Module) -> None:
        self.model, self._directory = model, directory
        self.places = places(model)
        self._files = _stored(directory)
        groups: dict[int, list[str]] = {}
        for name, place in self.places.items():
            groups.setdefault(id(getattr(*place)), []).append(name)
        # Of tied tensors, files hold one or all.
        names = {name: group for group in groups.values() for name in group}
        self._source = {name: next((n for n in group if n in self._files), "") for name, group in names.items()}
        missing = [name for name, source in self._source.items() if not source]
        unexpected = [name for name in self._files if name not in self.places and not name.endswith(_COMPUTED)]
        if missing or unexpected:
            raise ForeignError(
                f"{directory}: not a checkpoint of this {type(model).__name__} (missing: "
                f"{some(missing, _SHOWN) or 'none'}; unexpected: {some(unexpected, _SHOWN) or 'none'})"
            )

    @property
    def files(self) -> list[Path]:
        """The files that the weights are in, and their index if there is one."""
        index = [self._directory / INDEX] if (self._directory / INDEX).is_file() else []
        return index + sorted(set(self._files.values()))

    def fill(self, names: Iterable[str], device: torch.device = CPU, kind: torch.dtype = torch.float32) -> None:
        """Give tensors of the model their values, one after the other.

        Args:
            names: which.
            device: where they will be.
            kind: of parameters; float32 holds all half precisions exactly.

        Raises:
            InputError: NaN or Inf.
        """
        owners: dict[str, Place] = {}
        for name in names:
            place, source = self.places[name], self._source[name]
            if source in owners:  # tied: one parameter, or training would move its memory twice
                setattr(*place, getattr(*owners[source]))
                continue
            owners[source] = place
            put(place, self._read(source, device, kind))

    def empty(self, names: Iterable[str]) -> None:
        """Take the values away again."""
        for name in names:
            put(self.places[name], getattr(*self.places[name]).detach().to("meta"))

    def _read(self, name: str, device: torch.device, wanted: torch.dtype) -> Tensor:
        """Read a tensor into memory of its own.

        safetensors returns the mapped file, whose pages count as memory in use until it is closed.
        """
        path = self._files[name]
        with safe_open(path, framework="pt") as file:
            value = file.get_tensor(name)
            floating = wanted if isinstance(getattr(*self.places[name]), nn.Parameter) else torch.float32
            kind = floating if value.is_floating_point() else value.dtype
            value = value.to(device, kind, copy=True)
        check_finite(name, value, path)
        return value


def _stored(directory: Path) -> dict[str, Path]:
    """Return the file of every stored tensor."""
    if (index := directory / INDEX).is_file():
        # By its last component: an index must not lead out of the directory.
        named = json.loads(index.read_text())["weight_map"]
        return {name: directory / Path(file).name for name, file in named.items()}
    if not (whole := directory / WHOLE).is_file():
        raise ForeignError(f"{directory}: neither {WHOLE} nor {INDEX}: only safetensors can be read piece by piece")
    with safe_open(whole, framework="pt") as file:
        return dict.fromkeys(file.keys(), whole)


class Writer:
    """Writes tensors as ``Shards`` reads them; what goes into one file is in the host's memory, and no more.

    Args:
        directory: of the files.
        size: bytes of a file, at most, unless one tensor is larger.
    """

    def __init__(self, directory: Path, size: int = SHARD_BYTES) -> None:
        self._directory, self._size = directory, size
        self._waiting: dict[str, Tensor] = {}
        self._named: dict[str, str] = {}
        self._bytes = 0

    def add(self, name: str, value: Tensor) -> None:
        """Write a tensor of any shape and type, copied to the host, now or with those to come."""
        if self._waiting and sum(each.nbytes for each in self._waiting.values()) + value.nbytes > self._size:
            self._write()
        self._bytes += value.nbytes
        self._waiting[name] = value.detach().cpu().contiguous().clone()

    def finish(self) -> list[str]:
        """Write the rest, and an index unless one file holds all; return the names of all files."""
        self._write()
        if len(files := set(self._named.values())) == 1:
            (self._directory / files.pop()).rename(self._directory / WHOLE)
            return [WHOLE]
        content = {"metadata": {"total_size": self._bytes}, "weight_map": self._named}
        artifacts.write_json(self._directory / INDEX, content)
        return [INDEX, *dict.fromkeys(self._named.values())]

    def _write(self) -> None:
        file = f"model-{len(set(self._named.values())) + 1:05d}.safetensors"
        artifacts.atomic_write(self._directory / file, functools.partial(save_file, self._waiting))
        self._named |= dict.fromkeys(self._waiting, file)
        self._waiting = {}


def save(model: nn.Module, directory: Path, size: int = SHARD_BYTES) -> list[str]:
    """Write the weights of a model, tied ones once, by a :class:`Writer`; return the names of the files."""
    writer = Writer(directory, size)
    for name, place in untied(model).items():
        writer.add(name, getattr(*place))
    return writer.finish()
