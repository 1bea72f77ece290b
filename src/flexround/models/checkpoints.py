"""Other people's checkpoints: read without running their code, renamed to our layouts, loaded strictly."""

import contextlib
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from flexround.errors import InputError, some

_SHOWN = 3  # names listed in a message
_UNUSED_AT_EVALUATION = "num_batches_tracked"  # absent from files of before PyTorch 0.4.1
_UNEXPANDED = "features.1.conv."  # the block of MobileNetV2 that has two convolutions; all others have three
_FLAT_CONV = re.compile(r"(features\.\d+\.conv\.)(\d+)\.(.+)")


class ForeignError(InputError):
    """Files that hold a model's weights in another form, which the library that wrote them may convert."""


def read_foreign(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a checkpoint, safetensors or pickled, onto the CPU; nothing in the file is executed.

    A pickled dict with the weights under ``state_dict``, ``model_state_dict`` or ``model`` is unwrapped, as is the
    ``module.`` prefix that ``nn.DataParallel`` puts before every name.

    Raises:
        InputError: the file is missing, damaged, wants to run code, or holds something else than tensors.
    """
    state = _load(Path(path))
    if isinstance(state, Mapping):
        nested = (state.get(key) for key in ("state_dict", "model_state_dict", "model"))
        state = next((inner for inner in nested if isinstance(inner, Mapping)), state)
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{path}: holds {type(state).__name__} instead of a state dict; save model.state_dict() alone")
    for name, value in state.items():
        if not isinstance(value, Tensor) or not isinstance(name, str):
            raise InputError(
                f"{path}: entry {name!r} is {type(value).__name__}, not a tensor; save model.state_dict() alone"
            )
    prefix = "module." if all(name.startswith("module.") for name in state) else ""
    return {name.removeprefix(prefix): value for name, value in state.items()}


def load_known(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load a pretrained network of the same kind into ``model``; a head or pooler that it lacks stays as it is.

    Transformers keep everything but the head under ``base_model_prefix``. Of one head of both, a language model's, the
    weights are taken too.

    Raises:
        InputError: anything else is missing or has another shape.
    """
    prefix = f"{model.base_model_prefix}."
    own = model.state_dict()
    new = {name for name in own if not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")}
    known = {name: value for name, value in state.items() if name in own}
    load_into(model, {name: own[name] for name in new} | known, where)


def load_into(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Load ``state`` into ``model``: every tensor present, none left over, shapes equal, all values finite.

    Args:
        where: the file or source named in messages.

    Raises:
        InputError: naming the keys or the tensor; ``model`` is then as it was before.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in state and not name.endswith(_UNUSED_AT_EVALUATION)]
    unexpected = [name for name in state if name not in own]
    check_names(
        model, missing, unexpected, where, "the architecture and the key_map of this checkpoint in params/scales"
    )
    for name, value in state.items():
        check_shape(name, value.shape, own[name].shape, where)
        check_kind(name, value, own[name].dtype, where)
        check_finite(name, value.to(own[name].dtype), where)
    model.load_state_dict(own | dict(state))


def check_names(model: nn.Module, missing: list[str], unexpected: list[str], where: object, to_check: str) -> None:
    """Raise ForeignError if tensors of ``model`` are missing in the file or source ``where``, or it has others."""
    if missing or unexpected:
        raise ForeignError(
            f"{where}: not a checkpoint of this {type(model).__name__} (missing: {some(missing, _SHOWN) or 'none'}; "
            f"unexpected: {some(unexpected, _SHOWN) or 'none'}); check {to_check}"
        )


def check_shape(name: str, shape: Iterable[int], wanted: Iterable[int], where: object) -> None:
    """Raise InputError if a tensor of the file or source ``where`` has another shape than the model's."""
    if tuple(shape) != tuple(wanted):
        raise InputError(
            f"{where}: {name} has shape {tuple(shape)}, the model needs {tuple(wanted)}; check the arguments of the "
            "model's factory in params/scales"
        )


def check_kind(name: str, value: Tensor, wanted: torch.dtype, where: object) -> None:
    """Raise InputError if a tensor of ``where``, of any shape, can't become the type ``wanted`` without a guess."""
    plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
    if not plain or value.is_floating_point() != wanted.is_floating_point or value.is_complex():
        given = str(value.dtype).removeprefix("torch.")
        kind = given if plain else f"a {'meta' if value.is_meta else 'sparse or quantized'} tensor of {given}"
        raise InputError(
            f"{where}: {name} is {kind}, the model needs {str(wanted).removeprefix('torch.')}; save the network's own "
            "state dict, not quantized and with its values"
        )


def check_finite(name: str, value: Tensor, where: object) -> None:
    """Raise InputError if a tensor, of any shape, of the file or source ``where`` holds NaN or Inf."""
    if not torch.isfinite(value).all():
        raise InputError(f"{where}: {name} holds NaN or Inf; the file is damaged or its training diverged")


def brecq_mobilenetv2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Map a MobileNetV2 of BRECQ's release to torchvision's names.

    There each block is flat, (conv, norm, ReLU6) repeated and the last ReLU6 left out; torchvision nests all
    triples but the last. Everything outside the blocks has the same names.
    """

    def rename(name: str) -> str:
        if (match := _FLAT_CONV.fullmatch(name)) is None:
            return name
        unit, part = divmod(int(match[2]), 3)
        is_last = unit == (1 if match[1] == _UNEXPANDED else 2)
        return f"{match[1]}{unit + part if is_last else f'{unit}.{part}'}.{match[3]}"

    return {rename(name): value for name, value in state.items()}


def _load(path: Path) -> object:
    """Read safetensors, or unpickle tensors and plain containers only."""
    if not path.is_file():
        raise InputError(f"{path}: missing; put the file there or run the data stage, which fetches it")
    if path.suffix == ".safetensors":
        with opened(path) as file:
            return {name: file.get_tensor(name) for name in file.offset_keys()}
    try:
        # Every storage stays on the CPU, where it is read first, wherever it was saved.
        return torch.load(path, weights_only=True, map_location=lambda storage, _: storage)
    except Exception as error:  # whatever PyTorch raises on other people's files
        if isinstance(error, pickle.PickleError) and (refused := re.search(r"GLOBAL ([\w.]+)", str(error))):
            raise InputError(
                f"{path}: refused, because unpickling it would call {refused[1]}; use a file that holds tensors only "
                "(model.state_dict()), or convert it on a machine you can afford to lose"
            ) from error
        size, reason = path.stat().st_size, (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, pickle.PickleError):  # PyTorch's words advise to run what is in the file
            reason = "its pickle can't be read"
        raise InputError(
            f"{path}: not a whole PyTorch checkpoint ({size} bytes; {reason}); delete it and fetch it again"
        ) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; InputError if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path}: missing; fetch the directory again")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a whole safetensors file: {error}; delete it and fetch it again") from error
