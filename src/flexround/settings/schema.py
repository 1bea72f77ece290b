"""Pydantic models of recipes and scales in ``params/``: the type, the range and the meaning of each setting.

Unknown keys are errors everywhere. The report, the site and the reference print a setting's description; its part up
to the first semicolon is the setting's label.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.fields import FieldInfo

from flexround.errors import SettingsError
from flexround.settings.layout import PARAMS
from flexround.settings.validation import wrong_parts

T = TypeVar("T")
EVALUATED = 50  # rows per evaluation batch: larger batches are no faster, and another size changes the last bits


def _name(text: str) -> str:
    """Return a name that can become part of paths and commands; raise ValueError for any other name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise ValueError(
            "of a name use only letters, digits and . _ -, the first a letter or digit: it becomes part of paths"
        )
    return text


def within(path: str) -> str:
    """Return a relative path that stays within its base directory; raise ValueError for any other path."""
    if path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError("give a relative path without ..")
    return path


Name = Annotated[str, AfterValidator(_name)]
Within = Annotated[str, AfterValidator(within)]
Series = Annotated[str, Field(pattern=r"^[a-z]+$")]
Target = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*:\w+$")]  # package.module:name
Bits = Annotated[int, Field(ge=2, le=8)]
LayerBits = Bits | Literal["low"]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Trials = Annotated[int, Field(ge=1, le=1000)]
Samples = Annotated[int, Field(ge=1, le=10_000_000)]
Batch = Annotated[int, Field(ge=1, le=1_000_000)]
Epochs = Annotated[int, Field(ge=1, le=100_000)]
Seed = Annotated[int, Field(ge=0, le=2**53)]
Iterations = Annotated[int, Field(ge=0, le=100_000_000)]
Factor = Annotated[float, Field(gt=0, le=100)]  # learning rates and exponents
Decay = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(gt=0, le=10_000)]
Megabytes = Annotated[int, Field(ge=1, le=1_000_000_000)]
Minutes = Annotated[int, Field(ge=1, le=1_000_000)]
Schedule = Literal["none", "cosine", "linear"]
Stage = Literal["data", "finetune", "calibrate", "reconstruct", "evaluate", "tabulate"]
Preprocess = Literal["replace_relu6", "cross_layer_equalization", "absorb_high_biases", "restore_relu6"]
W_GRID = ("w_scheme", "w_granularity", "group_size", "stem_bits", "head_bits")  # settings of the weights' grids
A_GRID = ("a_scheme", "a_granularity", "stem_output_bits", "head_input_bits")  # settings of the activations' grids
NEED_GROUPS = ("cross_layer_equalization", "absorb_high_biases")  # steps that need the model's equalization groups


def _shape(value: object) -> str:
    """Return the tag of a setting: a single value for all groups, or a mapping with a value per group."""
    return " " if isinstance(value, dict) else ""  # an error's key leaves out blank tags


def _part_of_hyper(values: dict[str, Any]) -> dict[str, Any]:
    """Return some of a run's hyper-parameters; raise ValueError for an unknown key or a wrong value."""
    if wrong := wrong_parts(Hyper, values):
        raise ValueError("; ".join(wrong))
    return values


HyperPart = Annotated[dict[str, Any], AfterValidator(_part_of_hyper)]
PerGroup = Annotated[
    Annotated[T, Tag("")] | Annotated[dict[str, T], Tag(" ")], Discriminator(_shape)
]  # the tags make errors refer to the form that the user chose


class Strict(BaseModel):
    """Base class of all settings: no unknown keys, frozen values, finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def label(field: FieldInfo) -> str:
    """Return a setting's label: its description up to the first semicolon."""
    return (field.description or "").partition(";")[0]


class Recipe(Strict):
    """The recipe of a table row: setting, rounding, bits and options. Without any field it is full precision."""

    setting: Literal["B", "Q"] | None = Field(
        None, description="setting: B (BRECQ's) or Q (QDrop's); none: nothing is quantized"
    )
    rounding: str | None = Field(None, description="rounding; a name under `roundings`, or package.module:Class")
    options: dict[str, Any] = Field({}, description="options of the rounding; keyword arguments, e.g. learn_s1: false")
    w_bits: Bits | None = Field(None, description="bits of the weights; first and last layer excepted")
    a_bits: Bits | None = Field(None, description="bits of the activations; none keeps them in full precision")
    preprocess: tuple[Preprocess, ...] = Field(
        (), description="done to the network first; surgery on the folded model, in this order"
    )
    samples: Samples | None = Field(None, description="calibration samples; instead of the scale's")
    hyper: HyperPart = Field(
        {}, description="settings of its own; hyper-parameters that differ from the rules of defaults and scale"
    )
    select: tuple[str, ...] = Field(
        (),
        description="the best of these recipes; on a held-out part of the training data, in place of all other keys",
    )

    @model_validator(mode="after")
    def _all_or_nothing(self) -> "Recipe":
        given = [self.setting is not None, self.rounding is not None, self.w_bits is not None]
        if any(given) and not all(given):
            raise ValueError("setting, rounding and w_bits go together: give all three, or none for full precision")
        if self.a_bits and not self.setting:
            raise ValueError("a_bits needs setting, rounding and w_bits")
        if self.select and set(self.model_dump(exclude_defaults=True)) != {"select"}:  # job files include defaults
            raise ValueError("select goes alone: everything else is that of the recipe chosen")
        return self

    @property
    def quantized(self) -> bool:
        """Whether the row quantizes anything."""
        return self.setting is not None or bool(self.select)


class Hyper(Strict):
    """Every hyper-parameter of one reconstruction.

    A default with a source is a rule in ``params/defaults.yaml``; a default that only this code needs is in its field.
    """

    # grids (specification 1)
    w_scheme: Literal["symmetric", "asymmetric"] = Field(
        description="weights: kind of grid; symmetric is signed, or unsigned for a tensor without negatives"
    )
    w_granularity: Literal["tensor", "channel", "group"] = Field(
        description="weights: one grid for each; tensor, output channel, or group_size input channels of an output "
        "channel (linear layers; convolutions have one for each output channel then)"
    )
    group_size: int = Field(
        128, ge=8, le=65536, description="weights: input channels with one grid; if w_granularity is group"
    )
    w_init: Literal["mse", "minmax"] = Field(
        description="weights: search of the first step; mse searches for the least |error|^p"
    )
    w_init_p: Factor = Field(description="weights: exponent of that search; p of w_init")
    a_scheme: Literal["symmetric", "asymmetric"] = Field(description="activations: kind of grid; as w_scheme")
    a_granularity: Literal["tensor", "token"] = Field(
        description="activations: one grid for each; tensor: one static step, learned; token (text only): each "
        "token is quantized by its own least and largest value when it comes, nothing is learned"
    )
    a_init: Literal["mse", "minmax"] = Field(description="activations: search of the first step; as w_init")
    a_init_p: Factor = Field(description="activations: exponent of that search; p of a_init")
    a_init_samples: Samples = Field(description="activations: samples of that search; rows of the calibration samples")
    # first and last layer (specification 5.1)
    stem_bits: LayerBits = Field(
        description="bits of the first layer; of its weights, the first in the blocks; low: the recipe's w_bits"
    )
    head_bits: LayerBits = Field(description="bits of the last layer; of its weights; low: the recipe's w_bits")
    stem_output_bits: LayerBits = Field(
        description="bits of the first layer's output; where layer inputs are quantized, of what the second layer "
        "reads; low: the recipe's a_bits"
    )
    head_input_bits: LayerBits = Field(description="bits of the last layer's input; low: the recipe's a_bits")
    reconstruct_stem: bool = Field(
        description="the first layer is learned; the first block, if it is one layer of several blocks; else it is "
        "left at round-to-nearest"
    )
    # reconstruction of the weights (specification 2, 4, 6)
    samples: Samples = Field(description="calibration samples; a recipe's samples win")
    batch: Batch = Field(description="samples of an iteration; rows drawn from the calibration samples")
    replacement: bool = Field(description="samples are drawn with replacement; those of an iteration")
    mask_padding: bool = Field(
        description="padding doesn't count; padded tokens are left out of the loss and of the search for first steps; "
        "no effect on images"
    )
    iters: Iterations = Field(description="iterations of a block; for the weights (Q: weights and steps together)")
    lr: PerGroup[Factor] = Field(
        description="learning rate; one, or one for each group of the rounding: {v: ..., s1: ...} for AdaQuant, "
        "{v: ..., scales: ...} for AdaQuant + FlexRound"
    )
    schedule: PerGroup[Schedule] = Field(
        description="schedule of the learning rate; cosine and linear end at 0; one, or one for each group as for lr"
    )
    optimizer: Literal["adam", "sign"] = Field(
        description="optimizer; of the weights (Q: and of the steps learned with them); sign: signed gradient descent"
    )
    loss_p: Factor = Field(
        description="exponent of the error; of the reconstruction error, which is summed over channels and averaged "
        "over the rest"
    )
    reg_weight: Annotated[float, Field(ge=0, le=1e9)] = Field(description="AdaRound's regulariser: weight")
    reg_warmup: Share = Field(description="AdaRound's regulariser: part without it; of the iterations, from the first")
    reg_beta_start: Beta = Field(description="AdaRound's regulariser: first beta")
    reg_beta_end: Beta = Field(description="AdaRound's regulariser: last beta")
    # number formats of the computation
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = Field(
        description="products are computed in; bfloat16 and float16: by autocast, whenever rows run through a block; "
        "tf32: float32 whose factors GPUs round inside, only while a block is learned, never for targets and carried "
        "activations; what is learned, searches, errors and codes are always float32"
    )
    cache_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        description="activations are kept in; between blocks"
    )
    fused: bool = Field(
        description="on a GPU, torch.compile makes one pass over memory of each fake quantization; without Triton a "
        "line in the log says so and it runs as with false; for large matrices and for GPUs that wait for launches"
    )
    # steps of the activations (specification 6.1, 6.2)
    a_iters: Iterations = Field(description="activations: iterations of a block; B: for the steps, after all weights")
    a_lr: Factor = Field(description="activations: learning rate of steps; always annealed to 0")
    a_loss_p: Factor = Field(description="activations: exponent of the error; B: while the steps are learned")
    keep_probability: Probability = Field(
        description="part of the activations that is quantized; Q: probability of an activation to stay quantized "
        "(QDrop's drop_prob), in steps of 1/256"
    )
    input_keep_probability: Probability = Field(
        description="part of a block's input that is quantized; Q: probability of an element to be the quantized one"
    )

    def grid(self, recipe: Recipe) -> dict[str, object]:
        """Return a recipe's grid settings, which compared methods share, with ``low`` replaced by its bits."""
        bits = dict.fromkeys(W_GRID, recipe.w_bits) | (dict.fromkeys(A_GRID, recipe.a_bits) if recipe.a_bits else {})
        found = {name: low if getattr(self, name) == "low" else getattr(self, name) for name, low in bits.items()}
        return found | ({} if self.w_granularity == "group" else {"group_size": None})

    @model_validator(mode="after")
    def _enough_samples(self) -> "Hyper":
        if self.samples < self.batch:
            raise ValueError(f"samples={self.samples} is fewer than batch={self.batch}; raise samples or lower batch")
        return self


class HyperRule(Strict):
    """Values for the runs that match ``when``; of several matching rules the last one wins, key by key."""

    when: dict[
        Literal["setting", "rounding", "w_bits", "a_bits", "task", "module", "checkpoint", "recipe"], str | int
    ] = Field({}, description="run fields, and the task's module, to match; strings may hold * as in file names")
    set: HyperPart = Field(description="hyper-parameters and their values")
    source: str = Field(min_length=3, description="table, section, line or repository the values come from")


class Defaults(Strict):
    """``params/defaults.yaml``: rules that hold at every scale."""

    hyper: tuple[HyperRule, ...]


class Recipes(Strict):
    """``params/recipes.yaml``."""

    roundings: dict[str, str] = Field(description="name -> package.module:Class")
    recipes: dict[Name, Recipe]

    def bits(self, name: str) -> str:
        """Return a recipe's bits W/A, or its first candidate's if it chooses; full precision is 32."""
        recipe = self.recipes[next(iter(self.recipes[name].select), name)]
        return f"{recipe.w_bits or 32}/{recipe.a_bits or 32}"

    def made(self, field: Literal["setting", "select"]) -> list[str]:
        """Return the recipes that reconstruct (``setting``), or the recipes that choose among others (``select``)."""
        return [name for name, recipe in self.recipes.items() if getattr(recipe, field)]


class Gate(Strict):
    """Bounds that a full-precision network must meet before it is quantized, in the metric's unit."""

    metric: str
    min: float
    max: float

    @model_validator(mode="after")
    def _in_order(self) -> "Gate":
        if self.min > self.max:
            raise ValueError(f"min = {self.min:g} is above max = {self.max:g}; swap them")
        return self


class TrainRule(Strict):
    """Fine-tuning settings for the pairs that match ``when``; of several matching rules the last wins, key by key."""

    when: dict[Literal["task", "checkpoint"], str] = Field({}, description="may hold * as in file names")
    set: dict[str, Any] = Field(description="settings, read by the task")
    source: str = Field(min_length=3, description="table, section, line or repository the values come from")


class SeedRule(Strict):
    """Number of trials of quantized runs of the tasks that match ``when``; of several rules the last one wins."""

    when: dict[Literal["task"], str] = Field(description="may hold * as in file names")
    seeds: Trials
    source: str = Field(min_length=3, description="table, section, line or repository the number comes from")


class GateRule(Gate):
    """The gate for the pairs that match ``when``; of several matching rules the last one wins."""

    when: dict[Literal["task", "checkpoint"], str] = Field({}, description="may hold * as in file names")
    options: dict[str, Any] = Field({}, description="options of the task that differ for the gate, to measure less")


class ModelSpec(Strict):
    """The functions that build an architecture and cut it into blocks."""

    factory: str = Field(description="package.module:function that returns the module, weights not loaded")
    args: dict[str, Any] = Field({}, description="keyword arguments of the factory")
    blocks: str = Field(description="package.module:function(model) -> list[Block]")
    equalization: str | None = Field(None, description="package.module:function(model) -> equalization groups")


class Finish(Strict):
    """The last change to a network after its import and training."""

    function: str = Field(description="package.module:function(model, **args) that changes the model in place")
    args: dict[str, Any] = {}


class Checkpoint(Strict):
    """A named source of full-precision weights: an architecture, and the origin of its weights."""

    model: ModelSpec
    source: str | None = Field(None, description="row of params/sources.yaml")
    pretrain: str | None = Field(None, description="task it is trained on first, for what has no source")
    loader: str | None = Field(
        None, description="package.module:function(model, path, out) for sources that are no state dict in one file"
    )
    adapter: str | None = Field(
        None, description="row of params/sources.yaml: a LoRA adapter that is merged into the weights of `source`"
    )
    parts: tuple[str, ...] = Field(
        (), description="further rows of params/sources.yaml that the loader reads, which lie beside `source`"
    )
    streamed: bool = Field(
        False,
        description="whether its weights are read block by block, from the safetensors of a directory, because they "
        "don't fit in memory; for networks whose blocks are all alike",
    )
    evaluated: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="type of its weights and matrix products in evaluation, quantized or not"
    )
    key_map: str | None = Field(
        None, description="package.module:function(state_dict) -> state_dict for foreign layouts"
    )
    finish: Finish | None = Field(None, description="done to the network after it was imported and trained")

    @model_validator(mode="after")
    def _one_origin(self) -> "Checkpoint":
        if self.pretrain and self.source:
            raise ValueError("give source or pretrain, not both")
        if self.adapter and not self.source:
            raise ValueError("adapter needs source, the base model that it changes")
        if self.streamed and not self.source:
            raise ValueError("streamed needs a source: a network that is trained from its start is in memory")
        if self.streamed and self.finish:
            raise ValueError("finish needs the network in memory: leave streamed out")
        return self

    @property
    def sources(self) -> list[str]:
        """Return the rows of ``params/sources.yaml`` that the checkpoint uses."""
        return [source for source in (self.source, self.adapter, *self.parts) if source]


class TaskSpec(Strict):
    """A task's data and metric; ``module`` names the class, ``options`` are its arguments."""

    module: Target = Field(description="package.module:Class")
    options: dict[str, Any] = {}
    sources: tuple[str, ...] = Field((), description="rows of params/sources.yaml, fetched before the data stage")


class Resources(Strict):
    """The machine resources that a stage requests."""

    threads: Annotated[int, Field(ge=1, le=10_000)]
    gpu: Literal[0, 1]
    mem_mb: Megabytes
    runtime: Minutes = Field(description="minutes")
    seconds: Positive | None = Field(None, description="expected on one core; of a reconstruction for an iteration")
    gpu_mb: int = Field(0, ge=0, le=1_000_000_000, description="memory that the GPU must have")


class NeedRule(Strict):
    """The resources of the jobs that match ``when``; of several matching rules the last one wins, key by key."""

    when: dict[Literal["stage", "task", "checkpoint"], str] = Field(description="may hold * as in file names")
    set: dict[Literal["mem_mb", "runtime", "gpu_mb", "seconds"], Megabytes | Positive] = Field(
        description="instead of the stage's"
    )


class Figures(Strict):
    """The settings of the figures that depend on the scale."""

    large_weight: Positive = Field(description="|W| above which figure 3 calls a weight large (1 in the paper)")
    sample_sizes: tuple[Samples, ...] = Field(description="calibration sizes of figure 7")
    sample_size_seeds: Trials = Field(description="seeds of each point of figure 7")


class Shows(Strict):
    """The tables, figures and claims that a scale shows: the paper's, or its own. The files are in ``params/``."""

    tables: Series = Field(
        "table", description="series of tables: NAME01.yaml in params/tables makes results/NAME1.csv"
    )
    figures: Name = Field("figures.yaml", description="what its figures show")
    claims: Name | None = Field(None, description="what its claims are; the paper's, or none, if left out")
    published: bool = Field(True, description="whether they have numbers in published.csv")

    @model_validator(mode="before")
    @classmethod
    def _claims_of_the_paper(cls, given: Any) -> Any:
        """Add the paper's claims only to the paper's tables, which they name; other tables must name a claims file."""
        papers = isinstance(given, dict) and given.get("tables", "table") == "table"
        return {"claims": "claims.yaml"} | given if papers else given


class ScaleFacts(Strict):
    """The facts about a scale that outputs mention."""

    name: Name
    description: str
    comparable: bool = Field(description="whether its numbers may be compared with the published ones")


class Size(Strict):
    """Size of a task's data: rows, mean tokens of a row, and tokens of the longest row in a batch of 64."""

    train: int
    evaluated: Count
    gate: Count | None = Field(None, description="rows of a gate with options of its own; none: all that are evaluated")
    mean: Positive | None = None
    longest: Positive | None = Field(None, description="cut at the task's length; none: all rows are as long as that")
    generated: Count | None = None
    prompts: Count = 1
    source: str


class Scale(ScaleFacts):
    """``params/scales/NAME.yaml``: checkpoints, tasks, budgets, seeds."""

    seeds: Trials = Field(description="trials of a quantized run, where no rule of `trials` says otherwise")
    trials: tuple[SeedRule, ...] = ()
    tasks: dict[Name, TaskSpec]
    sizes: dict[Name, Size] = Field({}, description="of the tasks' data, by which `make plan` estimates hours")
    checkpoints: dict[Name, Checkpoint]
    train: tuple[TrainRule, ...] = Field((), description="pairs without a rule take their weights as they come")
    gates: tuple[GateRule, ...] = ()
    hyper: tuple[HyperRule, ...] = ()
    resources: dict[Stage, Resources]
    needs: tuple[NeedRule, ...] = Field((), description="jobs that need other resources than their stage's")
    figures: Figures
    shows: Shows = Field(default_factory=lambda: Shows.model_validate({}))
    sources: dict[Name, str] = Field({}, description="of its own: name -> file or folder, relative to the scale's file")
    tables: tuple[dict[str, Any], ...] = Field((), description="of its own, as files of params/tables describe them")

    @property
    def claims_file(self) -> Path:
        """The file of the scale's claims.

        Raises:
            SettingsError: the scale has no claims.
        """
        if self.shows.claims is None:
            raise SettingsError(f"scale {self.name}: shows: its tables have no claims; name a file: claims: FILE")
        return PARAMS / self.shows.claims
