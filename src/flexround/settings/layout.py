"""The paths of jobs and their results, shared by the Snakefile and the stages."""

import dataclasses
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[3]
PARAMS = next(path for path in (ROOT / "params", Path(__file__).resolve().parents[1] / "params") if path.is_dir())
FULL_PRECISION = "full-precision"
SOURCES = "results/sources"
REFERENCE = "results/reference"  # published with this repository
JOBS = ".jobs"  # directory of the job files
MODULES = "FLEXROUND_MODULES"  # environment variable: directories of the user's own modules, which may be moved


@dataclasses.dataclass(frozen=True)
class Run:
    """The identity of a computed result."""

    scale: str
    task: str
    checkpoint: str
    recipe: str
    seed: int

    def __str__(self) -> str:
        return f"{self.scale}/{self.task}/{self.checkpoint}/{self.recipe}/seed{self.seed}"


def data_dir(scale: str, task: str) -> str:
    """Directory of a task's prepared data."""
    return f"results/{scale}/data/{task}"


def checkpoint_dir(scale: str, task: str, checkpoint: str) -> str:
    """Directory of a checkpoint's full-precision weights after fine-tuning on a task."""
    return f"results/{scale}/checkpoints/{task}/{checkpoint}"


def calibration_dir(scale: str, task: str, samples: int | str, seed: int | str) -> str:
    """Directory of a seed's calibration samples."""
    return f"results/{scale}/calibration/{task}/n{samples}-seed{seed}"


def quantized_dir(run: Run) -> str:
    """Directory of a run's integer codes, steps and zero points."""
    return f"results/{run.scale}/quantized/{run.task}/{run.checkpoint}/{run.recipe}/seed{run.seed}"


def evaluated_dir(run: Run) -> str:
    """Directory of a run's metrics.json and per-example predictions."""
    return f"results/{run.scale}/evaluated/{run.task}/{run.checkpoint}/{run.recipe}/seed{run.seed}"


def evaluated_files(run: Run) -> tuple[str, str]:
    """The files of an evaluation."""
    directory = evaluated_dir(run)
    return f"{directory}/metrics.json", f"{directory}/predictions.safetensors"


def gate_file(scale: str, task: str, checkpoint: str) -> str:
    """File of a full-precision network's metrics when it passed its gate."""
    return f"results/{scale}/gates/{task}/{checkpoint}.json"


def source_file(name: str) -> str:
    """File with the facts of a fetched pinned source."""
    return f"{SOURCES}/{name}.json"


def job_directory(out: str) -> Path:
    """Directory of an output's job files; the output is a directory or the first of several files."""
    place = PurePath(out.removesuffix(".csv").removesuffix(".json").removesuffix(".pdf")).relative_to("results")
    return Path(JOBS) / place
