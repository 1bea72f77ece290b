"""FlexRound (ICML 2023), reproduced: quantization, reconstruction, tables.

Dependencies point one way: stages -> tasks, results, reconstruct -> models -> quant.

From Python: ``flexround.quantize(model, samples, "b-flexround-w4")``, see docs/library.md. Nothing slow is imported
until it is used.
"""

import importlib
from typing import Any

PUBLIC = {
    "quantize": "flexround.library.quantize",
    "load": "flexround.library.quantized",
    "Quantized": "flexround.library.quantized",
    "Recipe": "flexround.settings.schema",
    "Rounding": "flexround.quant.rounding",
    "clip": "flexround.quant.grid",
    "Block": "flexround.models.blocks",
    "Site": "flexround.models.blocks",
    "FlexRoundError": "flexround.errors",
}


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public are {', '.join(PUBLIC)}")
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*PUBLIC]
