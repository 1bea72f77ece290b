"""Exported networks beside ours: accuracy or perplexity, size, speed; figures in bench/RESULTS.md.

Needs the checkpoints and data of the scale real (`make results/real1.csv`, `real3`) and mini's of table 4, in the
current directory.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable
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

ROOT = Path("results/real")
ITERS = 200


def task_and_model(task: str, checkpoint: str, scale: str = "real") -> tuple[Any, nn.Module]:
    """Return a task of a scale and its full-precision network."""
    params, directory = load_params(scale), Path("results", scale, "checkpoints", task, checkpoint)
    built = protocol.build(params.scale.tasks[task])
    return built, full_precision(params.checkpoint(checkpoint), built.head, directory)


def correct(
    run: Callable[[Tensor], np.ndarray], images: Tensor, labels: np.ndarray, batch: int = 100
) -> tuple[float, float]:
    """Return percent of images (N, 3, H, W) that ``run`` puts into their class, and seconds an image."""
    start, hits = time.perf_counter(), 0
    for first in range(0, len(images), batch):
        hits += int((run(images[first : first + batch]).argmax(-1) == labels[first : first + batch]).sum())
    return 100 * hits / len(images), (time.perf_counter() - start) / len(images)


def answer(session: onnxruntime.InferenceSession, x: Tensor) -> np.ndarray:
    """Return what a session gives for inputs (N, ...)."""
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@torch.no_grad()
def images(checkpoint: str) -> None:
    """Compare a ResNet with its ONNX file."""
    task, model = task_and_model("cifar10", checkpoint)
    data = ROOT / "data/cifar10"
    shown = task.normalise(np.load(data / "val_images.npy"), "cpu").contiguous()
    labels = np.load(data / "val_labels.npy")
    drawn = task.normalise(task.calibration(data, 512, 0)["images"], "cpu").contiguous()
    quantized = flexround.quantize(model, drawn, "q-flexround-w8a8", iters=ITERS, batch=16, lr=8e-3, progress=False)
    with TemporaryDirectory() as scratch:
        path = quantized.export("onnx", f"{scratch}/onnx", shown[:2]) / "model.onnx"
        plain = f"{scratch}/plain.onnx"
        torch.onnx.export(
            model.eval(),
            (shown[:2],),
            plain,
            dynamo=True,
            verbose=False,
            external_data=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        for name, file in (("float32", plain), ("W8A8", path)):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = f"{scratch}/optimized.onnx"
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            kinds = Counter(node.op_type for node in onnx.load(f"{scratch}/optimized.onnx").graph.node)
            found = correct(functools.partial(answer, session), shown, labels)
            print(
                f"{checkpoint} {name}: {found[0]:.2f} %, {1e3 * found[1]:.3f} ms an image, "
                f"{Path(file).stat().st_size / 1e6:.2f} MB, {kinds['QLinearConv']} convolutions in integers of "
                f"{kinds['QLinearConv'] + kinds['Conv'] + kinds['FusedConv']}",
                flush=True,
            )
    ours = correct(lambda x: quantized(x).numpy(), shown, labels)
    print(f"{checkpoint} ours, W8A8 simulated: {ours[0]:.2f} %, {1e3 * ours[1]:.3f} ms an image", flush=True)


@torch.no_grad()
def language() -> None:
    """Compare stories260K with what transformers reads."""
    task, model = task_and_model("tinystories", "stories260k")
    data, network = ROOT / "data/tinystories", ROOT / "checkpoints/tinystories/stories260k"
    drawn = task.inputs(task.calibration(data, 128, 0), network).x[:, 0]
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("b-flexround-w4", {"w_scheme": "symmetric"}),
        ("q-flexround-w8a8", {}),
    )
    for recipe, more in cases:
        quantized = flexround.quantize(model, drawn, recipe, iters=ITERS, batch=2, lr=2e-3, progress=False, **more)
        with TemporaryDirectory() as scratch:
            directory = quantized.export("compressed-tensors", f"{scratch}/out")
            again = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
            size = sum(path.stat().st_size for path in directory.glob("*.safetensors")) / 1e6
        values = [
            task.evaluate(each, data, torch.device("cpu"), 8, network, "validation").metrics["ppl"]
            for each in (quantized.model, again)
        ]
        print(f"stories260K {recipe}: perplexity {values[0]:.5f} ours, {values[1]:.5f} transformers; {size:.3f} MB")


class Session(nn.Module):
    """An onnxruntime session in the place of a classifier of transformers."""

    def __init__(self, session: onnxruntime.InferenceSession, config: transformers.PretrainedConfig) -> None:
        super().__init__()
        self.session, self.config = session, config

    def forward(self, **inputs: Tensor) -> transformers.modeling_outputs.SequenceClassifierOutput:
        """Return the logits for token ids, types and masks, int64 (N, T) each."""
        (logits,) = self.session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=torch.from_numpy(logits))


@torch.no_grad()
def sentences(name: str) -> None:
    """Compare mini's BERT-base on a task of GLUE with its ONNX file."""
    task, model = task_and_model(name, "bert-base", "mini")
    data, network = Path("results/mini/data", name), Path("results/mini/checkpoints", name, "bert-base")
    drawn = task.inputs(task.calibration(data, 256, 0), network)
    rows = {
        "input_ids": drawn.x[:, 0],
        "token_type_ids": drawn.x[:, 1],
        "attention_mask": torch.ones_like(drawn.x[:, 0]) if drawn.mask is None else drawn.mask.long(),
    }
    quantized = flexround.quantize(model, rows, "q-flexround-w8a8", iters=ITERS, batch=32, lr=1e-2, progress=False)
    with TemporaryDirectory() as scratch:
        path = (
            quantized.export("onnx", f"{scratch}/onnx", {key: value[:2] for key, value in rows.items()}) / "model.onnx"
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.optimized_model_filepath = f"{scratch}/optimized.onnx"
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        kinds = Counter(node.op_type for node in onnx.load(f"{scratch}/optimized.onnx").graph.node)
        size = path.stat().st_size / 1e6
    cases = {"float32": model, "W8A8, ours": quantized.model, "W8A8, onnxruntime": Session(session, model.config)}
    for case, each in cases.items():
        start = time.perf_counter()
        metrics = task.evaluate(each, data, torch.device("cpu"), 50, network, "validation").metrics
        print(f"{name} {case}: {metrics}, {time.perf_counter() - start:.1f} s", flush=True)
    print(
        f"{name}: {size:.2f} MB, {kinds['MatMulIntegerToFloat']} products in integers of "
        f"{kinds['MatMulIntegerToFloat'] + kinds['MatMul'] + kinds['FusedMatMul'] + kinds['Gemm'] + kinds['FusedGemm']}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    images("resnet20")
    images("resnet56")
    language()
    sentences("glue-mrpc")
    sentences("glue-rte")
