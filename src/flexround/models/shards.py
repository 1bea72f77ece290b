"""Weights that stay in their files until they are needed: safetensors, whole or in shards with an index."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from flexround.errors import InputError
from flexround.io import artifacts
from flexround.models.checkpoints import ForeignError, check_finite, check_names, check_shape, opened
from flexround.models.tensors import Place, places, put, untied

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")
_COMPUTED = ".rotary_emb.inv_freq"  # old LLaMA files hold these buffers, which the model computes
CPU = torch.device("cpu")
SHARD_BYTES = 5 * 10**9


class Shards:
    """The weights of one model in their files, which are checked against the model when this is made.

    Args:
        directory: holds ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.
        model: whose tensors are filled; may be without weights.

    Raises:
        InputError: a missing or damaged file, a wrong index, or tensors that are missing, left over, of another shape
            or type; only headers are read for it.
    """

    def __init__(self, directory: Path, model: nn.Module) -> None:
        self.model, self._directory = model, directory
        self.places = places(model)
        headers = _headers(directory)
        groups: dict[int, list[str]] = {}
        for name, place in self.places.items():
            groups.setdefault(id(getattr(*place)), []).append(name)
        # Of tied tensors, files hold one or all.
        self._stored = {
            name: [other for other in group if other in headers] for group in groups.values() for name in group
        }
        self._files = {name: path for name, (path, _, _) in headers.items()}
        missing = [name for name, stored in self._stored.items() if not stored]
        unexpected = [name for name in headers if name not in self.places and not name.endswith(_COMPUTED)]
        check_names(model, missing, unexpected, directory, "the files, the index and the model's settings")
        for name, place in self.places.items():
            if name in headers:
                path, shape, kind = headers[name]
                wanted = getattr(*place)
                check_shape(name, shape, wanted.shape, path)
                if wanted.is_floating_point() and kind not in _FLOATS:
                    raise InputError(
                        f"{path}: {name} is {kind}; only {', '.join(_FLOATS)} can be read: convert the file"
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
            InputError: a damaged file, NaN or Inf, or tied tensors that differ.
        """
        done: dict[str, Tensor] = {}
        owners: dict[str, Place] = {}
        for name in names:
            place, first = self.places[name], self._stored[name][0]
            if first in done:  # tied: one parameter, or training would move its memory twice
                setattr(*place, getattr(*owners[first]))
                continue
            done[first], owners[first] = self._read(first, device, kind), place
            put(place, done[first])
        for name, value in done.items():
            for other in self._stored[name][1:]:
                if not torch.equal(self._read(other, device, value.dtype), value):
                    raise InputError(
                        f"{self._files[other]}: {other} differs from {name}, to which the settings tie it; "
                        "set tie_word_embeddings: false in the model's arguments"
                    )

    def empty(self, names: Iterable[str]) -> None:
        """Take the values away again."""
        for name in names:
            put(self.places[name], getattr(*self.places[name]).detach().to("meta"))

    def _read(self, name: str, device: torch.device, wanted: torch.dtype) -> Tensor:
        """Read a tensor into memory of its own.

        safetensors returns the mapped file, whose pages count as memory in use until it is closed.
        """
        path = self._files[name]
        with opened(path) as file:
            value = file.get_tensor(name)
            floating = wanted if isinstance(getattr(*self.places[name]), nn.Parameter) else torch.float32
            kind = floating if value.is_floating_point() else value.dtype
            value = value.to(device, kind, copy=True)
        check_finite(name, value, path)
        return value


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


def _headers(directory: Path) -> dict[str, tuple[Path, list[int], str]]:
    """Return file, shape and type of every stored tensor."""
    index = directory / INDEX
    named = read_index(index) if index.is_file() else {}
    if not named and not (directory / WHOLE).is_file():
        raise ForeignError(f"{directory}: neither {WHOLE} nor {INDEX}: only safetensors can be read piece by piece")
    entries: dict[str, tuple[Path, list[int], str]] = {}
    for path in sorted(set(named.values())) or [directory / WHOLE]:
        with opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                part = file.get_slice(name)
                entries[name] = path, part.get_shape(), part.get_dtype()
    for name, path in named.items():
        if name not in entries or entries[name][0] != path:
            raise InputError(f"{index}: {path.name} does not hold {name}, as it says; fetch index and shards again")
    return entries


def read_index(index: Path) -> dict[str, Path]:
    """Return the file of each tensor that an index of shards names, beside the index; InputError if it is none."""
    try:
        named = json.loads(index.read_text())["weight_map"].items()
        # By its last component: an index must not lead out of the directory.
        return {name: index.parent / Path(file).name for name, file in named}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index}: not an index of shards: {error}; fetch it again") from error
