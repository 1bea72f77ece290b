"""The fingerprint of unfinished work: a hash of all that decides its bits, the code included."""

import inspect
import sys
from pathlib import Path
from typing import Any

import torch

from flexround.errors import InputError
from flexround.machine.seeding import derive
from flexround.reconstruct.codes import site_key
from flexround.reconstruct.reconstruction import Reconstruction
from flexround.settings import reach


def fingerprint(work: Reconstruction, inputs: str) -> str:
    """Return a hash of all that decides the bits of a reconstruction: settings, machine, inputs and code.

    The code is all that the library and the rounding can import; comments count only in notebooks.

    Args:
        work: its rounding is a class, or a function that makes one; of a module, a script or a notebook.
        inputs: a digest of the weights and the samples.

    Raises:
        InputError: code that was typed in where it can't be read again, so that an edit of it would not be noticed.
    """
    starts, texts, rounding = ["flexround.library.quantize", "flexround.library.command"], [], work.rounding
    for base in rounding.__mro__ if isinstance(rounding, type) else (rounding,):
        if base.__module__ == "__main__":
            texts.append(_typed(base))
        else:
            starts.append(f"{base.__module__}:{base.__qualname__}")
    modules = reach.closure(*starts)
    texts += [path.read_text() for module in modules for path in module.sources]
    code = sorted(module.digest for module in modules), texts
    chosen = (work.recipe.model_dump_json(), work.hyper.model_dump_json(), work.seed_parts)
    names = {module: name for name, module in work.model.named_modules()}
    cut = [(block.name, [site_key(names, site) for site in block.sites]) for block in work.blocks]
    machine = (torch.__version__, work.device, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    return f"{derive(inputs, *chosen, code, *machine, cut):016x}"


def _typed(base: Any) -> str:
    """Return the text of a class or function of a script, with all that stands beside it, or of a notebook."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        if script and Path(script).is_file():
            return Path(script).read_text(encoding="utf-8")
        parts = vars(base).values() if isinstance(base, type) else [base]
        return "\n".join(inspect.getsource(part) for part in parts if inspect.isfunction(part))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"state: the code of rounding {base.__qualname__} can't be read ({error}), and without it an edit would "
            "not be noticed; put the class into a file, or leave state out"
        ) from error
