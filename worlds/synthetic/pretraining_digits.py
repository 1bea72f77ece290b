"""How the mini scale's image networks are made before they are pinned; MobileNetV2 gets the real one's difficulty."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from flexround.mini.digits import Digits
from flexround.settings.validation import validate
from flexround.tasks.options import FinetuneSettings
from synthetic import unevenness
from synthetic.options import UnevenSettings

EXAMPLES = 500  # images in a forward pass
OWN = set(UnevenSettings.model_fields) - set(FinetuneSettings.model_fields)


class PretrainingDigits(Digits):
    """``Digits`` whose training can leave a MobileNetV2 uneven."""

    def finetune(self, model: nn.Module, data: Path, settings: dict[str, Any], network: Path) -> dict[str, Any]:
        """Train ``model`` in place, and make it uneven; see ``UnevenSettings``."""
        uneven = validate(UnevenSettings, settings, "train settings of an image network that will be pinned")
        if uneven.high_biases:
            unevenness.raise_biases(model, uneven.high_biases)
        usual = {name: value for name, value in settings.items() if name in FinetuneSettings.model_fields}
        facts = super().finetune(model, data, usual, network)
        if uneven.spread > 1:
            images = np.load(data / "train_images.npy", mmap_mode="r")
            device = next(model.parameters()).device
            starts = range(0, len(images), EXAMPLES)
            batches = (self.normalise(images[start : start + EXAMPLES], device) for start in starts)
            unevenness.spread_ranges(model, batches, uneven.spread)
        return facts | {"unevenness": uneven.model_dump(mode="json", include=OWN)}
