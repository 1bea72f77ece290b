"""Compare exported networks with ours: accuracy or perplexity, size, speed; figures in bench/RESULTS.md.

The current directory needs the checkpoints and data of the scale real (`make results/real1.csv`, `real3`).
"""

import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from torch import Tensor, nn

import flexround
from flexround.models.build import full_precision
from flexround.settings.load import load_params
from flexround.tasks import protocol

ITERS = 200


def load(task: str, checkpoint: str) -> tuple[Any, nn.Module, Path, Path]:
    """Return a task of the scale real, its full-precision network, and the directories of its data and network."""
    params, root = load_params("real"), Path("results/real")
    network, built = root / "checkpoints" / task / checkpoint, protocol.build(params.scale.tasks[task])
    return built, full_precision(params.checkpoint(checkpoint), built.head, network), root / "data" / task, network


class Session(nn.Module):
    """An ONNX file in onnxruntime, used as a network; ``shown`` describes its size and its integer convolutions."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        optimized, options = file.with_name("optimized.onnx"), onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(optimized)
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        kinds = Counter(node.op_type for node in onnx.load(optimized).graph.node)
        total = sum(kinds[name] for name in ("QLinearConv", "Conv", "FusedConv"))
        self.shown = f"{file.stat().st_size / 1e6:.2f} MB, {kinds['QLinearConv']} of {total} convolutions in integers"

    def forward(self, x: Tensor) -> Tensor:
        """Return the file's output for images (N, 3, S, S)."""
        return torch.from_numpy(self.session.run(None, {self.session.get_inputs()[0].name: x.numpy()})[0])


@torch.no_grad()
def images(checkpoint: str) -> None:
    """Compare a ResNet with its ONNX file."""
    task, model, data, _ = load("cifar10", checkpoint)
    shown = task.normalise(np.load(data / "val_images.npy"), "cpu").contiguous()
    labels = torch.from_numpy(np.load(data / "val_labels.npy"))
    drawn = task.normalise(task.calibration(data, 512, 0)["images"], "cpu").contiguous()
    quantized = flexround.quantize(model, drawn, "q-flexround-w8a8", iters=ITERS, batch=16, lr=8e-3, progress=False)
    with TemporaryDirectory() as scratch:
        path = quantized.export("onnx", f"{scratch}/onnx", shown[:2]) / "model.onnx"
        plain, free = Path(scratch, "plain.onnx"), ({0: torch.export.Dim("batch")},)
        options = {"dynamo": True, "verbose": False, "external_data": False, "dynamic_shapes": free}
        torch.onnx.export(model.eval(), (shown[:2],), plain, **options)
        files = {"float32 in onnxruntime": plain, "W8A8 in onnxruntime": path}
        cases = {name: Session(file) for name, file in files.items()}
    for name, run in (cases | {"W8A8 simulated here": quantized}).items():
        start = time.perf_counter()
        found = torch.cat([run(part).argmax(-1) for part in shown.split(100)])
        seconds = (time.perf_counter() - start) / len(shown)
        right = 100 * (found == labels).float().mean()
        speed = f"{1e3 * seconds:.3f} ms an image, {getattr(run, 'shown', '')}"
        print(f"{checkpoint} {name}: {right:.2f} %, {speed}", flush=True)


@torch.no_grad()
def language() -> None:
    """Compare stories260K with its export as transformers reads it."""
    task, model, data, network = load("tinystories", "stories260k")
    drawn = task.inputs(task.calibration(data, 128, 0), network).x[:, 0]
    for recipe, more in (("b-flexround-w4", {"w_scheme": "symmetric"}), ("q-flexround-w8a8", {})):
        quantized = flexround.quantize(model, drawn, recipe, iters=ITERS, batch=2, lr=2e-3, progress=False, **more)
        with TemporaryDirectory() as scratch:
            directory = quantized.export("compressed-tensors", f"{scratch}/out")
            theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
            size = sum(path.stat().st_size for path in directory.glob("*.safetensors")) / 1e6
        here, there = (
            task.evaluate(each, data, torch.device("cpu"), 8, network, "validation").metrics["ppl"]
            for each in (quantized.model, theirs)
        )
        print(f"stories260K {recipe}: perplexity {here:.5f} ours, {there:.5f} transformers; {size:.3f} MB")


if __name__ == "__main__":
    torch.set_num_threads(1)
    images("resnet20")
    images("resnet56")
    language()
