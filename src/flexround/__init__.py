"""FlexRound (ICML 2023), reproduced: quantization, reconstruction, tables.

Dependencies point one way: stages -> tasks, results, reconstruct -> models -> quant.

From Python: ``flexround.quantize(model, samples, "b-flexround-w4")``, see docs/library.md. Slow
imports are deferred until they are needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from flexround.errors import FlexRoundError as FlexRoundError
    from flexround.library.quantize import quantize as quantize
    from flexround.library.quantized import Quantized as Quantized
    from flexround.library.quantized import load as load
    from flexround.models.blocks import Block as Block
    from flexround.models.blocks import Site as Site
    from flexround.quant.grid import clip as clip
    from flexround.quant.rounding import Rounding as Rounding
    from flexround.settings.schema import Recipe as Recipe

__version__ = "0.1.0"
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
    """Import a public name when it is first used."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public are {', '.join(PUBLIC)}")
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*PUBLIC, "__version__"]
