"""The fingerprint of unfinished work: a hash of all that decides its bits, the code included."""

import inspect
import sys
from pathlib import Path

from flexround import code
from flexround.io import resume
from flexround.reconstruct.codes import site_key
from flexround.reconstruct.reconstruction import Reconstruction

ROOMS = ("library", "reconstruct", "quant", "models", "machine", "io")


def fingerprint(work: Reconstruction, inputs: str) -> str:
    """Return a hash of all that decides the bits of a reconstruction: settings, machine, inputs and code.

    The code is that of the library, of the rounding and of all that the rounding imports.

    Args:
        work: its rounding is a class, or a function that makes one; of a module, a script or a notebook.
        inputs: a digest of the weights and the samples.

    Raises:
        OSError: the code of the rounding was typed in where it can't be read again.
    """
    rounding = work.rounding
    bases = rounding.__mro__ if isinstance(rounding, type) else (rounding,)
    modules = {base.__module__ for base in bases} - {"__main__", "builtins"}
    script = getattr(sys.modules["__main__"], "__file__", None)
    typed = [part for base in bases if base.__module__ == "__main__" for part in (base, *vars(base).values())]
    functions = [part for part in typed if inspect.isfunction(part)]  # a notebook's classes have no source of their own
    text = "" if not typed else Path(script).read_text() if script else "".join(map(inspect.getsource, functions))
    names = {module: name for name, module in work.model.named_modules()}
    cut = [(block.name, [site_key(names, site) for site in block.sites]) for block in work.blocks]
    settings = (work.recipe.model_dump_json(), work.hyper.model_dump_json(), str(work.seed_parts), str(cut))
    return resume.fingerprint(work.device, inputs, *settings, code.digest(code.files(ROOMS, sorted(modules))), text)
