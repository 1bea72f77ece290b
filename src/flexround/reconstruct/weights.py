"""Where a block's full-precision weights come from when its turn is: memory, or the checkpoint's files."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from flexround.errors import SettingsError
from flexround.models.blocks import Block
from flexround.models.tensors import within
from flexround.models.weights import Shards


class Resident:
    """The whole model is in memory; what a block was before it was quantized is copied if it is needed again.

    Attributes:
        alike: whether all blocks have inputs and outputs of one shape, so that the first one speaks for all.
    """

    alike = False

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._originals: dict[int, dict[str, Any]] = {}

    @contextlib.contextmanager
    def block(self, index: int, again: bool) -> Iterator[None]:
        """Put back what the block was, if it has been quantized; ``again``: it will be asked for once more."""
        module = self._blocks[index].module
        if index in self._originals:
            module.load_state_dict(self._originals.pop(index))
        elif again:
            self._originals[index] = {
                name: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)  # a module's extra state
                for name, value in module.state_dict().items()
            }
        yield

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: what is in no block (embeddings, the last norm, the head) is in memory."""
        return contextlib.nullcontext()


class Streamed:
    """One block is in memory at a time, or the surroundings; the model was built without weights.

    Args:
        shards: the weights, with their model, whose buffers are moved to ``device``.
        blocks: of that model.
        device: where blocks run.

    Raises:
        SettingsError: the blocks are not alike.
    """

    alike = True

    def __init__(self, shards: Shards, blocks: Sequence[Block], device: torch.device) -> None:
        self._shards, self._device = shards, device
        self._names = [within(block.module, shards.places) for block in blocks]
        inside = {name for names in self._names for name in names}
        self._outside = [name for name in shards.places if name not in inside]
        sizes = [[getattr(*shards.places[name]).shape for name in names] for names in self._names]
        for block, of_block in zip(blocks, sizes, strict=True):
            if of_block != sizes[0]:
                raise SettingsError(
                    f"block {block.name} differs from {blocks[0].name}: set `streamed: false` for this checkpoint"
                )
        for module in shards.model.modules():
            for name, value in module._buffers.items():
                if value is not None:
                    module._buffers[name] = value.to(device)

    def block(self, index: int, again: bool) -> contextlib.AbstractContextManager[None]:
        """Read the block, and drop it afterwards."""
        return self._held(self._names[index])

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Read everything outside the blocks, and drop it afterwards."""
        return self._held(self._outside)

    @contextlib.contextmanager
    def _held(self, names: Sequence[str]) -> Iterator[None]:
        self._shards.fill(names, self._device)
        yield
        self._shards.empty(names)


Weights = Resident | Streamed
