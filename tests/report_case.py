"""A made-up project directory for the tests of the report."""

import base64
import json
from pathlib import Path

from table_runs import OF_RUNS, claims_csv, fill, hits, loaded, settings_csv

from flexround.settings import layout
from flexround.settings.layout import Run
from flexround.settings.plan import Plan

PLAN = Plan(loaded("mini"))
SCORES = {recipe: hits(800) for recipe in ("b-adaround-w4a4", "q-adaround-w4a4", "b-adaround-w3a3", "q-adaround-w3a3")}
SCORES |= {recipe.replace("adaround", "flexround"): hits(850) for recipe in SCORES} | {"full-precision": hits(990)}
RUN = Run("mini", "imagenet", "resnet18-brecq", "q-flexround-w4a4", 0)
CLAIMS = "claim,place,section,column,metric,bits,one,other,criterion,margin,noise,p_value,verdict,recipe,other_recipe"
LOG = "12:00:01 block a\nWarning: /somewhere/else\n12:00:02 block </script> b\n"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def write(path: Path, content: object) -> None:
    """Write text, or anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def table3(root: Path) -> str:
    """Write the runs of table 3 and return its CSV."""
    text = fill(root / "results", OF_RUNS["table03"], SCORES)
    for path in root.glob("results/mini/evaluated/*/*/*/*/metrics.json"):
        content = json.loads(path.read_text())
        content |= {"seconds": 2.0, "environment": {"python": "3.11", "device": "CPU", "packages": {"torch": "2"}}}
        path.write_text(json.dumps(content))
    return text


def fill_root(root: Path) -> None:
    """Write tables 3 and 13 of made-up runs, one of them with everything that a real one leaves behind."""
    mini = root / "results/mini"
    write(mini / "table3.csv", table3(root))
    write(mini / "table13.csv", settings_csv(13, PLAN.params))
    rows = "Q + FlexRound (Ours),Q + AdaRound,better,1.00,0.50,0.0100,holds,q-flexround-w4a4,q-adaround-w4a4"
    lines = f"joint-s1-beats-adaround,table 3,,<b>bold</b>,top1,4/4,{rows}\n"
    lines += f"s1-learnable,,,,top1{8 * ','}not run,,\ns1-learnable,,,,top1{5 * ','}2.00,,,holds,,\n"
    write(mini / "claims.csv", claims_csv(f"{CLAIMS}\n{lines}"))
    (mini / "figure3.png").write_bytes(PIXEL)
    blocks = [
        {"block": name, "phase": "weights", "seconds": 1.5, "peak_mb": 700.0, "error_rtn": 0.123456} for name in "ab"
    ]
    quantized = layout.quantized_dir(RUN)
    write(root / quantized / "record.json", {"blocks": blocks, "environment": {"device": "CPU"}})
    facts = {
        "recipe": {"setting": "Q", "w_bits": 4},
        "hyper": {"lr": {"v": 0.1, "s1": 2}},
        "hyper_sources": {"lr": "section 9"},
    }
    write(root / quantized / "manifest.json", facts)
    write(root / "logs/mini" / Path(quantized).relative_to("results/mini").with_suffix(".log"), LOG)
    samples = layout.calibration_dir("mini", "imagenet", 1024, 0)
    write(root / samples / "manifest.json", {"samples": 1024, "seed": 0, "files": {}})
    weights = layout.checkpoint_dir("mini", "imagenet", "resnet18-brecq")
    write(root / weights / "manifest.json", {"train": {"settings": {"label_smoothing": 0.0, "long" * 20: "name" * 20}}})
    usage = {"seconds": 3.5, "cpu_seconds": 5.0, "max_rss_mb": 90.5, "exit": 0}
    write(root / "logs" / f"{Path(samples).relative_to('results')}.usage.json", usage)
    write(root / PLAN.gate(RUN), {"top1": 99.0})
