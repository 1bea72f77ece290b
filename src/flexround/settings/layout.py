"""Where everything lies: the one place that knows paths. Shared by the Snakefile and the stages."""

import dataclasses
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PARAMS = ROOT / "params"
FULL_PRECISION = "full-precision"
CODE = ".code"  # hashes of the source files of each stage


@dataclasses.dataclass(frozen=True)
class Run:
    """The identity of everything that is computed."""

    scale: str
    task: str
    checkpoint: str
    recipe: str
    seed: int

    def __str__(self) -> str:
        return f"{self.scale}/{self.task}/{self.checkpoint}/{self.recipe}/seed{self.seed}"


def data_dir(scale: str, task: str) -> str:
    """Prepared data of a task."""
    return f"results/{scale}/data/{task}"


def checkpoint_dir(scale: str, task: str, checkpoint: str) -> str:
    """Full-precision weights of a checkpoint after fine-tuning on a task."""
    return f"results/{scale}/checkpoints/{task}/{checkpoint}"


def calibration_dir(scale: str, task: str, samples: int | str, seed: int | str) -> str:
    """The very calibration samples of a seed."""
    return f"results/{scale}/calibration/{task}/n{samples}-seed{seed}"


def quantized_dir(run: Run) -> str:
    """Integer codes, steps and zero points of a run."""
    return f"results/{run.scale}/quantized/{run.task}/{run.checkpoint}/{run.recipe}/seed{run.seed}"


def evaluated_dir(run: Run) -> str:
    """metrics.json and the per-example predictions of a run."""
    return f"results/{run.scale}/evaluated/{run.task}/{run.checkpoint}/{run.recipe}/seed{run.seed}"
