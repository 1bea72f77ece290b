"""Pydantic models of recipes, scales and sources in ``params/``. Unknown keys are errors everywhere."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Bits = Annotated[int, Field(ge=2, le=8)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Schedule = Literal["none", "cosine", "linear"]
Stage = Literal["data", "finetune", "calibrate", "reconstruct", "evaluate", "tabulate"]
Preprocess = Literal["replace_relu6", "cross_layer_equalization", "absorb_high_biases", "restore_relu6"]


def within(path: str) -> str:
    """Return a path that stays in the directory that it is relative to.

    Raises:
        ValueError: it is empty, absolute, or has ``..`` in it.
    """
    if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError("a relative path without '..' is needed")
    return path


Within = Annotated[str, AfterValidator(within)]  # a path that stays in its directory


class Strict(BaseModel):
    """Base of all settings: unknown keys forbidden, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Recipe(Strict):
    """One table row: setting + rounding + bits + what is learnable. All fields empty is full precision."""

    setting: Literal["B", "Q"] | None = Field(
        None, description="BRECQ's or QDrop's reconstruction; none = no quantization"
    )
    rounding: str | None = Field(None, description="a name under `roundings`, or package.module:Class")
    options: dict[str, Any] = Field({}, description="keyword arguments of the rounding, e.g. learn_s1: false")
    w_bits: Bits | None = Field(None, description="bits of the weights, first and last layer excepted")
    a_bits: Bits | None = Field(None, description="bits of the activations; none keeps them in full precision")
    preprocess: tuple[Preprocess, ...] = Field((), description="surgery on the folded model, in this order")
    samples: Count | None = Field(None, description="calibration samples, instead of the scale's")
    hyper: dict[str, Any] = Field({}, description="hyper-parameters that differ from the rules of defaults and scale")
    select: tuple[str, ...] = Field(
        (), description="instead of all this: the best of these recipes on a held-out part of the training data"
    )

    @model_validator(mode="after")
    def _all_or_nothing(self) -> "Recipe":
        given = [self.setting is not None, self.rounding is not None, self.w_bits is not None]
        if any(given) and not all(given):
            raise ValueError("setting, rounding and w_bits go together: give all three, or none for full precision")
        if self.a_bits and not self.setting:
            raise ValueError("a_bits needs setting, rounding and w_bits")
        if self.select and set(self.model_dump(exclude_defaults=True)) != {"select"}:  # a job file has defaults too
            raise ValueError("select goes alone: everything else is that of the recipe chosen")
        return self

    @property
    def quantized(self) -> bool:
        """Whether the row quantizes anything."""
        return self.setting is not None or bool(self.select)


class Hyper(Strict):
    """Every hyper-parameter of one reconstruction; see docs/settings.md for what each does and where it comes from."""

    # grid (specification 1)
    w_scheme: Literal["symmetric", "asymmetric"]
    w_granularity: Literal["tensor", "channel"]
    w_init: Literal["mse", "minmax"]
    w_init_p: Positive
    a_scheme: Literal["symmetric", "asymmetric"]
    a_granularity: Literal["tensor", "token"]
    a_init: Literal["mse", "minmax"]
    a_init_p: Positive
    a_init_samples: Count
    # first and last layer (specification 5.1)
    stem_bits: Bits | Literal["low"]
    head_bits: Bits | Literal["low"]
    stem_output_bits: Bits | Literal["low"]
    head_input_bits: Bits | Literal["low"]
    reconstruct_stem: bool
    # reconstruction of the weights (specification 2, 4, 6)
    samples: Count
    batch: Count
    replacement: bool
    mask_padding: bool
    iters: Annotated[int, Field(ge=0)]
    lr: Positive | dict[str, Positive]
    schedule: Schedule | dict[str, Schedule]
    optimizer: Literal["adam", "sign"]
    loss_p: Positive
    reg_weight: Annotated[float, Field(ge=0)]
    reg_warmup: Annotated[float, Field(ge=0, lt=1)]
    reg_beta_start: Positive
    reg_beta_end: Positive
    # what it is computed in
    precision: Literal["float32", "tf32", "bfloat16", "float16"]
    cache_dtype: Literal["float32", "bfloat16", "float16"]
    fused: bool
    # activation steps (specification 6.1, 6.2)
    a_iters: Annotated[int, Field(ge=0)]
    a_lr: Positive
    a_loss_p: Positive
    keep_probability: Annotated[float, Field(gt=0, le=1)]
    input_keep_probability: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _enough_samples(self) -> "Hyper":
        if self.samples < self.batch:
            raise ValueError(f"samples={self.samples} is fewer than batch={self.batch}; raise samples or lower batch")
        return self


class HyperRule(Strict):
    """Values that hold for the runs that match ``when``; of several matching rules the last one wins, key by key."""

    when: dict[Literal["setting", "rounding", "w_bits", "a_bits", "task", "checkpoint", "recipe"], str | int] = Field(
        {}, description="run fields to match; strings may hold * as in file names"
    )
    set: dict[str, Any] = Field(description="hyper-parameters and their values")
    source: str = Field(min_length=3, description="table, section, line or repository the values come from")


class Defaults(Strict):
    """``params/defaults.yaml``: rules that hold at every scale."""

    hyper: tuple[HyperRule, ...]


class Recipes(Strict):
    """``params/recipes.yaml``."""

    roundings: dict[str, str] = Field(description="name -> package.module:Class")
    recipes: dict[str, Recipe]

    def bits(self, name: str) -> str:
        """Return the bits W/A of a recipe, or of the first that it chooses among; full precision is 32."""
        recipe = self.recipes[next(iter(self.recipes[name].select), name)]
        return f"{recipe.w_bits or 32}/{recipe.a_bits or 32}"

    def made(self, field: Literal["setting", "select"]) -> list[str]:
        """Return the recipes that are reconstructed (``setting``), or chosen among others (``select``)."""
        return [name for name, recipe in self.recipes.items() if getattr(recipe, field)]


class Gate(Strict):
    """What a full-precision network must show before it is quantized, in the unit of the metric."""

    metric: str
    min: float
    max: float


class TrainRule(Strict):
    """Fine-tuning settings of the pairs that match ``when``; of several the last one wins, key by key."""

    when: dict[Literal["task", "checkpoint"], str] = Field({}, description="may hold * as in file names")
    set: dict[str, Any] = Field(description="settings, read by the task")
    source: str = Field(min_length=3, description="table, section, line or repository the values come from")


class SeedRule(Strict):
    """Trials of the quantized runs of the tasks that match ``when``; of several the last one wins."""

    when: dict[Literal["task"], str] = Field(description="may hold * as in file names")
    seeds: Count
    source: str = Field(min_length=3, description="table, section, line or repository the number comes from")


class GateRule(Gate):
    """The gate of the pairs that match ``when``; of several matching rules the last one wins."""

    when: dict[Literal["task", "checkpoint"], str] = Field({}, description="may hold * as in file names")


class Model(Strict):
    """How to build an architecture and cut it into blocks."""

    factory: str = Field(description="package.module:function that returns the module, weights not loaded")
    args: dict[str, Any] = Field({}, description="keyword arguments of the factory")
    blocks: str = Field(description="package.module:function(model) -> list[Block]")
    equalization: str | None = Field(None, description="package.module:function(model) -> equalization groups")


class Finish(Strict):
    """What is done to a network when it is otherwise ready."""

    function: str = Field(description="package.module:function(model, **args) that changes the model in place")
    args: dict[str, Any] = {}


class Checkpoint(Strict):
    """A named source of full-precision weights: an architecture, and where its weights start."""

    model: Model
    source: str | None = Field(None, description="row of params/sources.yaml")
    pretrain: str | None = Field(None, description="task it is trained on first, for what has no source")
    loader: str | None = Field(
        None, description="package.module:function(model, path, out) for sources that are no state dict in one file"
    )
    adapter: str | None = Field(
        None, description="row of params/sources.yaml: a LoRA adapter that is merged into the weights of `source`"
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
        """Return the rows of ``params/sources.yaml`` that it is made from."""
        return [source for source in (self.source, self.adapter) if source]


class Task(Strict):
    """Data + metric; ``module`` holds the class, ``options`` are its arguments."""

    module: str = Field(description="package.module:Class")
    options: dict[str, Any] = {}
    sources: tuple[str, ...] = Field((), description="rows of params/sources.yaml, fetched before the data stage")
    files: str | None = Field(None, description="pattern of further files its evaluation reads, within the project")


class Resources(Strict):
    """What a stage asks of the machine."""

    threads: Count
    gpu: Annotated[int, Field(ge=0)]
    mem_mb: Count
    runtime: Annotated[int, Field(ge=1, description="minutes")]
    gpu_mb: int = Field(0, ge=0, description="memory that the GPU must have")


class Needs(Strict):
    """What a job asks for in the place of its stage's resources."""

    mem_mb: Count | None = None
    runtime: Annotated[int | None, Field(ge=1, description="minutes")] = None
    gpu_mb: Annotated[int | None, Field(ge=0, description="memory that the GPU must have")] = None


class NeedRule(Strict):
    """What the jobs that match ``when`` ask for; of several the last one wins, key by key."""

    when: dict[Literal["stage", "task", "checkpoint"], str] = Field(description="may hold * as in file names")
    set: Needs


class Figures(Strict):
    """What the figures need to know of a scale."""

    large_weight: Positive = Field(description="|W| above which figure 3 calls a weight large (1 in the paper)")
    sample_sizes: tuple[Count, ...] = Field(description="calibration sizes of figure 7")
    sample_size_seeds: Count = Field(description="seeds of each point of figure 7")


class Shows(Strict):
    """What a scale shows: the paper's tables, figures and claims, or its own. Files are those of ``params/``."""

    tables: Annotated[str, Field(pattern=r"^[a-z]+$")] = Field(
        "table", description="series of tables: NAME01.yaml in params/tables makes results/NAME1.csv"
    )
    figures: str = Field("figures.yaml", description="what its figures show")
    claims: str = Field("claims.yaml", description="what its claims are")
    published: bool = Field(True, description="whether they have numbers in published.csv")


class ScaleFacts(Strict):
    """What outputs say of a scale."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    description: str
    comparable: bool = Field(description="whether its numbers may be compared with the published ones")


class Scale(ScaleFacts):
    """``params/scales/NAME.yaml``: checkpoints, tasks, budgets, seeds."""

    seeds: Count = Field(description="trials of a quantized run, where no rule of `trials` says otherwise")
    trials: tuple[SeedRule, ...] = ()
    tasks: dict[str, Task]
    checkpoints: dict[str, Checkpoint]
    train: tuple[TrainRule, ...] = Field((), description="pairs without a rule take their weights as they come")
    gates: tuple[GateRule, ...]
    hyper: tuple[HyperRule, ...]
    resources: dict[Stage, Resources]
    needs: tuple[NeedRule, ...] = Field((), description="jobs that need other resources than their stage's")
    figures: Figures
    shows: Shows = Field(default_factory=lambda: Shows.model_validate({}))


class Source(Strict):
    """A pinned external input."""

    kind: Literal["checkpoint", "dataset"]
    location: str = Field(
        description="URL, file:PATH in this project, hub:OWNER/NAME on the Hugging Face hub, git:URL of a repository, "
        "or what to obtain if it can't be downloaded freely"
    )
    path: Within | None = Field(None, description="of the file or directory within a git repository")
    file: Within = Field(description="name under the sources directory, of a file or a directory")
    files: tuple[Within, ...] = Field(
        (),
        description="files of a directory that is verified as a whole, may hold *; a directory without is not verified",
    )
    packed: bool = Field(
        False,
        description="whether it is a tar, of which names and contents of the files are pinned, not the packing",
    )
    revision: str = Field(description="version; of the hub a commit or a name, of a git repository the whole commit")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="none: recorded at the first download and enforced from then on"
    )
    bytes: Count | None = None
    licence: str

    @property
    def inside(self) -> str:
        """Return the path within this project if it is a file or directory of it, else nothing."""
        return self.location.removeprefix("file:") if re.match("file:[^/]", self.location) else ""

    @model_validator(mode="after")
    def _file_of_project(self) -> "Source":
        if self.inside:
            within(self.inside)
        return self

    @model_validator(mode="after")
    def _hub_files(self) -> "Source":
        if self.location.startswith("hub:") and not self.files:
            raise ValueError("name the `files` wanted from the hub, e.g. [config.json, model.safetensors]")
        return self

    @model_validator(mode="after")
    def _commit_of_git(self) -> "Source":
        if self.location.startswith("git:") != (self.path is not None):
            raise ValueError("path: a location git:URL needs it, and no other location has one")
        if self.path is not None and not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            raise ValueError(f"revision={self.revision!r}: of a git repository give the whole commit, 40 hex digits")
        if self.packed and self.files:
            raise ValueError("give packed or files: a tar is verified by all its files")
        return self
