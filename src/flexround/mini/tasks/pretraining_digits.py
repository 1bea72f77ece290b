"""How the mini scale's image networks are made before they are pinned; MobileNetV2 gets the real one's difficulty."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import nn

from flexround.mini import unevenness
from flexround.mini.tasks.digits import Digits
from flexround.settings.schema import Strict
from flexround.settings.validation import validate

EXAMPLES = 500  # images in a forward pass


class Unevenness(Strict):
    """Train settings that ``PretrainingDigits`` has beside those of an image task."""

    high_biases: Annotated[float, Field(ge=0, le=1, description="share of channels that start far above zero")] = 0.0
    spread: Annotated[float, Field(ge=1, description="channels are scaled by up to this factor and its inverse")] = 1.0


class PretrainingDigits(Digits):
    """``Digits`` whose training can leave a MobileNetV2 uneven."""

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place, and make it uneven; see ``FinetuneSettings`` and ``Unevenness``."""
        own = {name: value for name, value in settings.items() if name in Unevenness.model_fields}
        uneven = validate(Unevenness, own, "train settings of an image network that will be pinned")
        if uneven.high_biases:
            unevenness.raise_biases(model, uneven.high_biases)
        others = {name: value for name, value in settings.items() if name not in own}
        facts = super().finetune(model, data, others, network)
        if uneven.spread > 1:
            images = np.load(data / "train_images.npy", mmap_mode="r")
            device = next(model.parameters()).device
            starts = range(0, len(images), EXAMPLES)
            batches = (self.normalise(images[start : start + EXAMPLES], device) for start in starts)
            unevenness.spread_ranges(model, batches, uneven.spread)
        return facts | {"unevenness": uneven.model_dump(mode="json")}
