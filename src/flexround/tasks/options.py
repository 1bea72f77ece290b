"""The options and training settings that a scale may give each task. This module imports no torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from flexround.settings.options import TaskSettings
from flexround.settings.schema import Batch, Count, Decay, Epochs, Factor, Positive, Samples, Seed, Share, Strict
from flexround.tasks.questions import KINDS, Version

Triple = tuple[float, float, float]
OfEpochs = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]


class ImageOptions(Strict):
    """Options of every image task."""

    mean: Triple = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)


class ImageNetOptions(ImageOptions):
    """Options of ``ImageNet``; the defaults fit ILSVRC2012."""

    root: Path = Field(Path("imagenet"), description="the data set: relative to the sources directory, or absolute")
    classes: Count = 1000
    train_count: Count | None = Field(1_281_167, description="training images expected; null: any number")
    val_count: Count | None = Field(50_000, description="validation images expected; null: any number")
    resize: Count = Field(256, description="shorter side before the central crop")
    crop: Count = 224

    @model_validator(mode="after")
    def _possible(self) -> "ImageNetOptions":
        if self.crop > self.resize:
            raise ValueError(f"crop={self.crop} is larger than resize={self.resize}")
        return self


class Cifar10Options(ImageOptions):
    """Options of ``Cifar10``."""

    root: Path = Field(Path("cifar10"), description="directory of train.tar and test.tar, within the sources directory")
    classes: Count = 10
    train: Count = Field(10_000, description="training images kept, the same number of each class; to calibrate on")


class PhotographsOptions(ImageOptions):
    """Options of ``Photographs``; TensorFlow's EfficientNet-Lite reads a pixel x as (x - 127) / 128."""

    mean: Triple = (127 / 255, 127 / 255, 127 / 255)
    std: tuple[Positive, Positive, Positive] = (128 / 255, 128 / 255, 128 / 255)
    root: Path = Field(Path("photographs"), description="of photographs.tar and samples.tar, within the sources")
    val: Count = Field(1000, description="number of photographs, by which metrics of the two sets are told apart")
    more: int = Field(0, ge=0, le=50_000, description="images of ImageNet's validation set in validation.tar; 0: none")
    size: Count = Field(224, description="side to which the central square of an image is resized")


class FinetuneSettings(Strict):
    """``train`` settings of an image task."""

    epochs: Epochs
    batch: Batch = 128
    lr: Factor = Field(description="peak learning rate")
    momentum: Share = 0.9
    nesterov: bool = False
    weight_decay: Decay = 0.0
    schedule: Literal["cosine", "step"] = "cosine"
    milestones: tuple[OfEpochs, ...] = Field((), description="epochs after which `step` lowers the rate")
    gamma: Positive = Field(0.1, description="factor of each milestone")
    warmup: OfEpochs = Field(0.0, description="epochs of linear warm-up")
    label_smoothing: Share = 0.0
    shift: int = Field(0, ge=0, le=10_000, description="random translation by up to so many pixels")
    seed: Seed = Field(0, description="of order, translations and dropout")


PARTS = ("top1_photographs", "top1_validation")  # metrics of the two sets of evaluated images


def settings(
    options: type[ImageOptions], training: type[Strict] = FinetuneSettings, parts: tuple[str, ...] = ()
) -> TaskSettings:
    """Return the settings of an image task, which holds out no training images."""
    return TaskSettings(options, training, lambda _: ("top1", "top5", *parts), heldout=False)


class TextOptions(Strict):
    """Options of every text task."""

    max_length: Count = Field(description="tokens of one input; longer ones are cut")
    heldout: int = Field(0, ge=0, description="training rows kept for choosing settings; never calibrated on")


class TrainSettings(Strict):
    """``train`` settings of a text task; the defaults match Hugging Face's Trainer."""

    epochs: Epochs
    batch: Batch
    lr: Factor
    weight_decay: Decay = 0.0
    eps: Factor = Field(1e-8, description="of AdamW")
    warmup: Share = Field(0.0, description="share of the steps")
    clip: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0
    precision: Literal["no", "fp16", "bf16"] = "no"
    at_once: Batch | None = Field(
        None, description="examples of a batch that the network sees at once, gradients add up; none: all"
    )
    checkpointing: bool = Field(
        False, description="keep only the layers' inputs of a forward pass: less memory, slower"
    )
    seed: Seed = Field(42, description="of the order of rows and of dropout; that of a new head is in `model.args`")


class LoraSettings(Strict):
    """Size of the adapters; the defaults match microsoft/LoRA's GPT-2."""

    rank: Batch = 4
    alpha: Batch = Field(32, description="the adapters count alpha / rank times")
    dropout: Share = Field(0.1, description="of the adapters' input")


class AdapterTrainSettings(TrainSettings):
    """``train`` settings of a task whose networks are trained as a whole, or with adapters for query and value."""

    lora: LoraSettings | None = Field(None, description="none: all weights are trained")
    frozen: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="with `lora`: type in which linears are held, which adapters leave as they are"
    )

    @model_validator(mode="after")
    def _half_what_is_frozen(self) -> "AdapterTrainSettings":
        if self.frozen != "float32" and (self.lora is None or self.precision == "no"):
            raise ValueError(f"frozen: {self.frozen} needs `lora`, and `precision` bf16 or fp16; give both or none")
        return self


Name = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
# The paper's metrics, name -> (metric, validation split); the first metric selects settings.
GLUE_METRICS = {name: {"acc": ("acc", "validation")} for name in get_args(Name)} | {
    "cola": {"matthews": ("matthews", "validation")},
    "stsb": {"pearson": ("pearson", "validation"), "spearman": ("spearman", "validation")},
    "qqp": {"f1": ("f1", "validation"), "acc": ("acc", "validation")},
    "mnli": {"acc_matched": ("acc", "validation_matched"), "acc_mismatched": ("acc", "validation_mismatched")},
}


class GlueOptions(TextOptions):
    """Options of ``Glue``."""

    name: Name
    root: Path = Field(Path("glue"), description="the data set: relative to the sources directory, or absolute")
    released: bool = Field(
        False, description="sst2, mrpc or stsb, from the tab-separated files of its authors; false: from the hub"
    )
    train: Samples | None = Field(None, description="training rows, drawn at random; none: all")


class SquadOptions(TextOptions):
    """Options of ``Squad``."""

    root: Path = Field(Path("squad"), description="the data set: relative to the sources directory, or absolute")
    doc_stride: Count = Field(128, description="tokens that neighbouring windows of a long context share")
    n_best: Count = Field(20, description="best starts and ends that are combined")
    max_answer_length: Count = Field(30, description="tokens of an answer")


class LanguageOptions(Strict):
    """Options of ``LanguageModelling``."""

    name: Literal["wikitext2", "ptb", "text"] = Field(description="text: any text file, whose last tenth validates")
    root: Path | None = Field(None, description="the corpus, relative to the sources directory; none: its name")
    block_size: Annotated[int, Field(ge=2)] = Field(1024, description="tokens of one input, at most the model's limit")
    joined: Count | None = Field(None, description="rows joined before they are cut; run_clm: 1000. None: all")
    heldout: int = Field(0, ge=0, description="first training rows, to choose settings by; never calibrated on")


class StoriesOptions(LanguageOptions):
    """Options of ``Stories``."""

    name: Literal["tinystories"] = "tinystories"  # type: ignore[assignment]
    root: Path = Field(Path("tinystories/tiny.utf8"), description="the text, relative to the sources directory")
    train: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="share of the stories to calibrate on")


Block = Annotated[int, Field(ge=2)]


class CommonsenseOptions(Strict):
    """Options of ``Commonsense``."""

    name: Literal["commonsense"] = "commonsense"
    root: Path = Field(Path(), description="folder of commonsense, wikitext2 and c4 in the sources directory; none: it")
    calibration: Literal["paper", "release"] = Field(
        "paper", description="random blocks of random documents of C4, or release: the first blocks of the first 1 %"
    )
    shards: Count = Field(1, description="first shards of C4 that the random documents come from")
    documents: Count = Field(20_000, description="random documents that the random blocks are cut from")
    block_size: Block = Field(1024, description="tokens of a calibration sample, and of a block of the metric ppl")
    joined: Count | None = Field(None, description="rows joined before blocks of ppl are cut; run_clm: 1000. None: all")
    test_block: Block = Field(2048, description="tokens of a block of the metric ppl_TOKENS")
    prompts: Version = Field("0.3", description="version of lm-eval whose way of asking is followed")
    shots: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 5), description="few-shot examples; none asks no questions"
    )
    begin: bool = Field(True, description="the tokenizer must put one token before each text, as LLaMA's does")
    heldout: Literal[0] = Field(0, description="no rows to choose settings by")


class PosedOptions(CommonsenseOptions):
    """Options of ``PosedCommonsense``."""

    test_block: Block = Field(512, description="tokens of a block of the metric ppl; block_size: of a sample alone")
    test_blocks: Count = Field(32, description="first blocks of WikiText-2's test text, which ppl is measured on")
    questions: Count = Field(250, description="random questions of each data set, always the same; all if it has fewer")
    shots: tuple[Literal[0], ...] = Field(
        (0,), max_length=1, description="no few-shot examples, the files have none; none asks no questions"
    )


def _asked(options: CommonsenseOptions) -> Iterable[str]:
    """Return the names of the accuracies and of ``ppl``, the perplexity that both tasks report."""
    return (*(f"{name}_{shots}" if shots else name for name in KINDS for shots in options.shots), "ppl")


class WebNLGOptions(TextOptions):
    """Options of ``WebNLG``; the defaults match microsoft/LoRA's examples/NLG."""

    root: Path = Field(Path("webnlg"), description="the data set: relative to the sources directory, or absolute")
    max_length: Count = Field(512, description="tokens of one input, of which a generated sentence is part")
    beams: Count = Field(10, description="hypotheses that the search carries on")
    length_penalty: Annotated[float, Field(ge=0)] = 0.8
    no_repeat_ngram: Count = Field(4, description="no so many tokens come twice in a sentence")
    steps: Count = Field(64, description="tokens of a sentence")


class WebNLGTrainSettings(LoraSettings, TrainSettings):
    """``train`` settings of WebNLG; the defaults match microsoft/LoRA's released adapters."""

    label_smoothing: Share = 0.1


TASKS = {
    "ImageNet": settings(ImageNetOptions),
    "Cifar10": settings(Cifar10Options),
    "Photographs": settings(PhotographsOptions, parts=PARTS),
    "Glue": TaskSettings(GlueOptions, TrainSettings, lambda options: GLUE_METRICS[options.name]),
    "Squad": TaskSettings(SquadOptions, TrainSettings, lambda _: ("f1", "em")),
    "LanguageModelling": TaskSettings(LanguageOptions, AdapterTrainSettings, lambda _: ("ppl",)),
    "Stories": TaskSettings(StoriesOptions, AdapterTrainSettings, lambda _: ("ppl",)),
    "Commonsense": TaskSettings(
        CommonsenseOptions, AdapterTrainSettings, lambda options: (*_asked(options), f"ppl_{options.test_block}")
    ),
    "PosedCommonsense": TaskSettings(PosedOptions, AdapterTrainSettings, _asked),
    "WebNLG": TaskSettings(WebNLGOptions, WebNLGTrainSettings, lambda _: ("all", "seen", "unseen")),
}
