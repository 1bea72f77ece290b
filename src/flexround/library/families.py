"""The architectures that the suite knows: how they are cut, and which of the paper's runs their settings come from."""

from typing import NamedTuple

from torch import Tensor, nn

SCALE = "paper"


class Family(NamedTuple):
    """What is known of an architecture.

    Attributes:
        task, checkpoint: of the scale ``paper``, whose hyper-parameters are the defaults.
        blocks: ``package.module:function(model) -> list[Block]``; None for a network that is cut by what it computes.
        equalization: likewise of its equalization groups, if it has some.
    """

    task: str
    checkpoint: str
    blocks: str | None = None
    equalization: str | None = None


KNOWN = {  # module and class, or the beginning of the class's name in transformers
    "torchvision.models.resnet:ResNet": Family("imagenet", "resnet18-brecq", "flexround.models.resnet:blocks"),
    "torchvision.models.mobilenetv2:MobileNetV2": Family(
        "imagenet",
        "mobilenetv2-brecq",
        "flexround.models.mobilenetv2:blocks",
        "flexround.models.mobilenetv2:equalization_groups",
    ),
    "flexround.models.cifar_resnet:CifarResNet": Family(
        "imagenet", "resnet18-brecq", "flexround.models.cifar_resnet:blocks"
    ),
    "transformers.models.bert.modeling_bert:": Family("glue-mnli", "bert-base", "flexround.models.bert:blocks"),
    "transformers.models.gpt_neo.modeling_gpt_neo:": Family(
        "wikitext2", "gpt-neo-125m", "flexround.models.gpt_neo:blocks"
    ),
    "transformers.models.opt.modeling_opt:": Family("wikitext2", "opt-125m", "flexround.models.opt:blocks"),
    "transformers.models.gpt2.modeling_gpt2:": Family("webnlg", "gpt2-medium", "flexround.models.gpt2:blocks"),
    "transformers.models.llama.modeling_llama:": Family("commonsense", "llama-7b", "flexround.models.llama:blocks"),
}
IMAGES = Family("imagenet", "resnet18-brecq")  # settings of networks that are not known, by what they read
TOKENS = Family("commonsense", "llama-7b")


def of(model: nn.Module, x: Tensor) -> Family:
    """Return the family of a model whose inputs are ``x`` (N, ...); a subclass is of its parent's."""
    for kind in type(model).__mro__:
        name = f"{kind.__module__}:{kind.__name__}"
        for known, family in KNOWN.items():
            if name == known or (known.endswith(":") and name.startswith(known)):
                return family
    return IMAGES if x.is_floating_point() else TOKENS
