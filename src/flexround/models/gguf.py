"""Language models in llama.cpp's format GGUF: quantized weights, the architecture and the tokenizer in one file.

transformers reads the file through the package ``gguf``. Its weights become float32: the network that is quantized here
is the dequantized one, and "full precision" means it.
"""

import contextlib
import io
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from flexround.errors import InputError
from flexround.io.artifacts import write_text
from flexround.models import pretrained, tokenizer_files
from flexround.models.checkpoints import load_into
from flexround.models.tokenizer_files import TOKENIZER


def import_file(model: Any, path: Path, out: Path) -> None:
    """Load a GGUF file's dequantized weights into ``model``, and put its tokenizer into ``out`` in our form.

    Raises:
        InputError: the package ``gguf`` or the file is missing; the file is damaged or of another architecture.
    """
    named: Any = {"gguf_file": path.name, **tokenizer_files.LOCAL}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            found: Any = AutoModelForCausalLM.from_pretrained(
                path.parent, dtype="float32", output_loading_info=True, **named
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **named).backend_tokenizer
    except ImportError as error:
        raise InputError(f"{path}: needs the package gguf; pip install 'flexround[llm]'") from error
    except Exception as error:  # whatever the two packages raise on missing or damaged files
        raise InputError(f"{path}: missing, or no readable GGUF language model ({error!r}); fetch it again") from error
    network, report = found
    if lost := sorted(report["missing_keys"]):  # transformers draws them
        raise InputError(f"{path}: {len(lost)} weights are missing, the first is {lost[0]}; fetch it again")
    pretrained.check_same(model.config, network.config, path)
    load_into(model, network.state_dict(), str(path))
    tokenizer_files.check_vocabulary(model, tokenizer, path)
    write_text(out / TOKENIZER, tokenizer_files.padded(tokenizer).to_str(pretty=True))
