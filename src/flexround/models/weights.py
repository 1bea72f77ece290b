"""Weight files: foreign state dicts and adapters, and safetensors, whole or in shards, read tensor by tensor."""

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
ADAPTER_ALPHA = 32.0  # from the training of microsoft/LoRA's release
_ADAPTER_KEY = re.compile(r"(?:.+\.)?h\.(\d+)\.attn\.c_attn\.lora_([AB])")
SHARD_BYTES = 5 * 10**9
_SHOWN = 3  # names listed in a message
_COMPUTED = ".rotary_emb.inv_freq"  # buffers in old LLaMA files, which the model computes itself


class ForeignError(InputError):
    """Files with a model's weights in a foreign form, which their own library may convert."""


def read_foreign(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint, safetensors or pickle, onto the CPU, without executing code.

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

    An adapter of rank r changes query and value by B A, scaled by ``ADAPTER_ALPHA / r``.

    Args:
        model: Hugging Face's ``GPT2Model``, perhaps with a head; not yet merged with an adapter.
        path: a ``.pt`` with every layer's A (2 r, d) and B (2 d, r) under ``model_state_dict``.
    """
    state = read_foreign(path)
    found = {match.groups(): value for key, value in state.items() if (match := _ADAPTER_KEY.fullmatch(key))}
    for i, block in enumerate(model.base_model.h):
        layer = block.attn.c_attn
        a, b = found[str(i), "A"].float(), found[str(i), "B"].float()  # query's rows first
        rank, width = b.shape[1], a.shape[1]
        query, value = b[:width] @ a[:rank], b[width:] @ a[rank:]
        change = ADAPTER_ALPHA / rank * torch.cat([query, torch.zeros_like(query), value]).T
        layer.weight.copy_(layer.weight.float() + change.to(layer.weight.device))


def load_known(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load a pretrained network of the same kind into ``model``; a head or pooler missing in ``state`` is kept.

    transformers puts everything but the head under ``base_model_prefix``. A head with equal names in both, such as a
    language model's, is loaded too. See ``load_into``.
    """
    prefix = f"{model.base_model_prefix}."
    own = model.state_dict()
    new = {name for name in own if not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")}
    known = {name: value for name, value in state.items() if name in own}
    load_into(model, {name: own[name] for name in new} | known, where)


def load_into(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load ``state`` into ``model``: every tensor present, none left over, shapes equal, all values finite.

    Files from before PyTorch 0.4.1 lack counts of batches, which evaluation does not use.

    Args:
        where: the file or source named in messages.

    Raises:
        InputError: tensors don't fit or are not finite; the message names them.
    """
    counts = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    try:
        model.load_state_dict(counts | dict(state))
    except RuntimeError as error:
        raise InputError(f"{where}: {error}") from error
    for name, value in model.state_dict().items():
        check_finite(name, value, where)


def check_finite(name: str, value: Tensor, where: object) -> None:
    """Raise InputError if a tensor, any shape, from the file or source ``where`` holds NaN or Inf."""
    if not torch.isfinite(value).all():
        raise InputError(f"{where}: {name} holds NaN or Inf; the file is damaged or its training diverged")


class Shards:
    """A model's weights in files, read when they are needed.

    Args:
        directory: holds ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.
        model: the model to fill; it may be without weights.

    Raises:
        ForeignError: the files are missing, or tensors are missing or unexpected.
    """

    def __init__(self, directory: Path, model: nn.Module) -> None:
        self.model, self._directory = model, directory
        self.places = places(model)
        self._files = _stored(directory)
        groups: dict[int, list[str]] = {}
        for name, place in self.places.items():
            groups.setdefault(id(getattr(*place)), []).append(name)
        # Files hold one or all of tied tensors.
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
        """The files with the weights, and their index if it exists."""
        index = [self._directory / INDEX] if (self._directory / INDEX).is_file() else []
        return index + sorted(set(self._files.values()))

    def fill(self, names: Iterable[str], device: torch.device = CPU, kind: torch.dtype = torch.float32) -> None:
        """Read values of the model's tensors, one after the other.

        Args:
            names: names of the tensors.
            device: the tensors' device.
            kind: type of parameters; float32 holds all half precisions exactly.

        Raises:
            InputError: a tensor holds NaN or Inf.
        """
        owners: dict[str, Place] = {}
        for name in names:
            place, source = self.places[name], self._source[name]
            if source in owners:  # tied: one parameter, or training would update its memory twice
                setattr(*place, getattr(*owners[source]))
                continue
            owners[source] = place
            put(place, self._read(source, device, kind))

    def empty(self, names: Iterable[str]) -> None:
        """Free the values of tensors."""
        for name in names:
            put(self.places[name], getattr(*self.places[name]).detach().to("meta"))

    def _read(self, name: str, device: torch.device, wanted: torch.dtype) -> Tensor:
        """Read a tensor into separate memory.

        safetensors maps the file, whose pages count as used memory until the file is closed.
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
    """Return the file of each stored tensor by name."""
    if (index := directory / INDEX).is_file():
        # Only the last component: an index must not point outside the directory.
        named = json.loads(index.read_text())["weight_map"]
        return {name: directory / Path(file).name for name, file in named.items()}
    if not (whole := directory / WHOLE).is_file():
        raise ForeignError(f"{directory}: neither {WHOLE} nor {INDEX}: only safetensors can be read piece by piece")
    with safe_open(whole, framework="pt") as file:
        return dict.fromkeys(file.keys(), whole)


class Writer:
    """Writes tensors in the form that ``Shards`` reads; the host's memory holds at most one file's tensors.

    Args:
        directory: directory of the files.
        size: maximal bytes per file, unless a single tensor is larger.
    """

    def __init__(self, directory: Path, size: int = SHARD_BYTES) -> None:
        self._directory, self._size = directory, size
        self._waiting: dict[str, Tensor] = {}
        self._named: dict[str, str] = {}
        self._bytes = 0

    def add(self, name: str, value: Tensor) -> None:
        """Copy a tensor, any shape and type, to the host; write it now or together with later tensors."""
        if self._waiting and sum(each.nbytes for each in self._waiting.values()) + value.nbytes > self._size:
            self._write()
        self._bytes += value.nbytes
        self._waiting[name] = value.detach().cpu().contiguous().clone()

    def finish(self) -> list[str]:
        """Write the remaining tensors, and an index for several files; return the names of all files."""
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
    """Write a model's weights, tied weights once, by a :class:`Writer`; return the names of the files."""
    writer = Writer(directory, size)
    for name, place in untied(model).items():
        writer.add(name, getattr(*place))
    return writer.finish()
