"""What scales may set of all text tasks: of their data and of their training. No torch here."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flexround.settings.schema import Batch, Count, Decay, Epochs, Factor, Seed, Share, Strict


class TextOptions(Strict):
    """What every text task may set."""

    max_length: Count = Field(description="tokens of one input; longer ones are cut")
    heldout: int = Field(0, ge=0, description="training rows kept for choosing settings; never calibrated on")


class TrainSettings(Strict):
    """``train`` settings of a text task; the defaults are those of Hugging Face's Trainer."""

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
    """Size of the adapters; the defaults are those of microsoft/LoRA's GPT-2."""

    rank: Batch = 4
    alpha: Batch = Field(32, description="the adapters count alpha / rank times")
    dropout: Share = Field(0.1, description="of the adapters' input")


class AdapterTrainSettings(TrainSettings):
    """``train`` settings of a task whose networks are trained as a whole, or by adapters of query and value."""

    lora: LoraSettings | None = Field(None, description="none: all weights are trained")
    frozen: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="with `lora`: type in which linears are held, which adapters leave as they are"
    )

    @model_validator(mode="after")
    def _half_what_is_frozen(self) -> "AdapterTrainSettings":
        if self.frozen != "float32" and (self.lora is None or self.precision == "no"):
            raise ValueError(f"frozen: {self.frozen} needs `lora`, and `precision` bf16 or fp16; give both or none")
        return self
