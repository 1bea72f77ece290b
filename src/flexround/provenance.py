"""What is recorded about where a number came from."""

import platform
from importlib import metadata
from typing import Any

import torch

from flexround import precision

RECORDED = (
    *("torch", "torchvision", "transformers", "tokenizers", "accelerate"),
    *("peft", "numpy", "safetensors", "scikit-learn", "scipy", "sacrebleu", "lm_eval"),
)


def environment(device: Any) -> dict[str, Any]:
    """Return versions, device and host facts for a result file; of a GPU also how it computes."""
    on_gpu = torch.device(device).type == "cuda"
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in RECORDED},
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU {platform.machine()}",
        "threads": torch.get_num_threads(),
        **({"gpu": precision.facts()} if on_gpu else {}),
    }
