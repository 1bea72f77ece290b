"""The settings of a rehearsal: a scale that extends another and makes its networks, data and budgets small.

Only sizes, counts and what follows from them (ids of special tokens), iterations, epochs, the gates' bounds and what is
asked of the machine differ. All else, precision included, is that of the scale which is rehearsed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flexround.errors import SettingsError
from flexround.settings.params import Params
from flexround.settings.schema import Checkpoint

NAME = "rehearsal"
CLASSES = 10
VOCABULARY = 1424  # of the largest of mini's tokenizers
IMAGES = {"train": 2048, "val": 20}  # figure 7 calibrates on up to 2048

# Smaller options of each kind of task; an option is only set where the scale or the task has it.
OPTIONS: dict[str, dict[str, Any]] = {
    "flexround.tasks.images.task:ImageNet": {
        "classes": CLASSES,
        "train_count": IMAGES["train"],
        "val_count": IMAGES["val"],
        "resize": 36,
        "crop": 32,
    },
    "flexround.tasks.glue.task:Glue": {"max_length": 48},
    "flexround.tasks.squad.task:Squad": {"max_length": 64, "doc_stride": 16},
    "flexround.tasks.language.task:LanguageModelling": {"block_size": 32},
    "flexround.tasks.webnlg.task:WebNLG": {"max_length": 128, "beams": 2, "steps": 8},
    "flexround.tasks.commonsense.task:Commonsense": {"documents": 40, "block_size": 32, "test_block": 48},
}
HELDOUT = 8

_LAYERS = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_END_FIRST = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}  # a small GPT-2's end of text is token 0
# Smaller arguments of each factory. torchvision's ResNets have no argument for their width: the mini scale's class is
# the same network with fewer planes.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "flexround.models.resnet:resnet18": {"width": 8, "num_classes": CLASSES},
    "flexround.models.resnet:resnet50": {"width": 8, "num_classes": CLASSES},
    "flexround.models.mobilenetv2:mobilenet_v2": {"width_mult": 0.1, "num_classes": CLASSES},
    "flexround.models.transformer:bert": {**_LAYERS, "intermediate_size": 32},
    "flexround.models.transformer:gpt_neo": {
        **_END_FIRST,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "pad_token_id": 0,
    },
    "flexround.models.transformer:opt": {**_LAYERS, "ffn_dim": 32},
    "flexround.models.transformer:gpt2": {**_END_FIRST, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "flexround.models.transformer:llama": {**_LAYERS, "intermediate_size": 32},
}
NARROW = {f"flexround.models.resnet:{name}": f"flexround.mini.models:{name}" for name in ("resnet18", "resnet50")}
TRAIN = {"epochs": 1, "batch": 8}
HYPER = {"samples": 16, "batch": 4, "iters": 2, "a_iters": 2, "a_init_samples": 8}
OPEN = {"min": -1.0e9, "max": 1.0e9}  # gates that let every finite value pass
MEMORY = 2000  # MB of any job
SOURCE = "a rehearsal"


def smaller(params: Params, scale: str, gpu: int = 0) -> dict[str, Any]:
    """Return a scale named ``NAME`` that ``extends`` another, as its YAML file says it; jobs get ``gpu`` GPUs or none.

    Raises:
        SettingsError: a task or a network that this module doesn't know how to make small.
    """
    original = params.scale
    return {
        "name": NAME,
        "extends": scale,
        "description": f"a rehearsal of {scale} on stand-ins: the numbers mean nothing",
        "tasks": {name: {"options": _options(name, task)} for name, task in original.tasks.items()},
        "checkpoints": {name: _checkpoint(name, checkpoint) for name, checkpoint in original.checkpoints.items()},
        "train": list(_rules(original.train, TRAIN)),
        "gates": [rule.model_dump() | OPEN for rule in original.gates],
        "hyper": list(_rules((*params.defaults.hyper, *original.hyper), HYPER)),
        "resources": {
            stage: {"threads": 1, "gpu": min(asked.gpu, gpu), "mem_mb": MEMORY, "gpu_mb": None}
            for stage, asked in original.resources.items()
        },
        "needs": None,  # what is null is left out: no job is large
    }


def _options(name: str, task: Any) -> dict[str, Any]:
    if task.module not in OPTIONS:
        raise SettingsError(f"task {name}: no small options for {task.module}; add them to {__name__}.OPTIONS")
    return OPTIONS[task.module] | ({"heldout": HELDOUT} if task.options.get("heldout") else {})


def _checkpoint(name: str, checkpoint: Checkpoint) -> dict[str, Any]:
    factory = checkpoint.model.factory
    if factory not in ARGUMENTS:
        raise SettingsError(f"checkpoint {name}: no small arguments for {factory}; add them to {__name__}.ARGUMENTS")
    return {"model": {"factory": NARROW.get(factory, factory), "args": ARGUMENTS[factory]}}


def _rules(rules: Iterable[Any], small: Mapping[str, int]) -> Iterable[dict[str, Any]]:
    """Yield each rule that sets something of ``small``, for the same runs, with the smaller values."""
    for rule in rules:
        values = {key: min(value, small[key]) for key, value in rule.set.items() if key in small}
        if values:
            yield {"when": dict(rule.when), "set": values, "source": SOURCE}
