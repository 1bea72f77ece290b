"""The paths of jobs and their results, shared by the Snakefile and the stages."""

import dataclasses
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[3]
PARAMS = next(path for path in (ROOT / "params", Path(__file__).resolve().parents[1] / "params") if path.is_dir())
FULL_PRECISION = "full-precision"
SOURCES = "results/sources"
REFERENCE = "results/reference"  # published with this repository
JOBS = ".jobs"  # what each run may know of the settings
MODULES = "FLEXROUND_MODULES"  # environment variable: directories of the user's own modules, which may be moved


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


def evaluated_files(run: Run) -> tuple[str, str]:
    """What an evaluation consists of."""
    directory = evaluated_dir(run)
    return f"{directory}/metrics.json", f"{directory}/predictions.safetensors"


def gate_file(scale: str, task: str, checkpoint: str) -> str:
    """What a full-precision network showed when it passed its gate."""
    return f"results/{scale}/gates/{task}/{checkpoint}.json"


def source_file(name: str) -> str:
    """What is known of a pinned source that is there."""
    return f"{SOURCES}/{name}.json"


def job_directory(out: str) -> Path:
    """The job files of an output, a directory or the first of several files: one for all settings that are the same."""
    place = PurePath(out.removesuffix(".csv").removesuffix(".json").removesuffix(".pdf")).relative_to("results")
    return Path(JOBS) / place
