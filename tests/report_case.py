"""The report of a made-up project directory, and the reports of clones without results."""

import base64
import functools
import json
import tempfile
from pathlib import Path

from table_runs import OF_RUNS, claims_csv, fill, hits, loaded, settings_csv

from flexround.results.render import report_page
from flexround.settings import layout
from flexround.settings.layout import ROOT, Run
from flexround.settings.plan import Plan

PLAN = Plan(loaded("mini"))
SCORES = {recipe: hits(800) for recipe in ("b-adaround-w4a4", "q-adaround-w4a4", "b-adaround-w3a3", "q-adaround-w3a3")}
SCORES |= {recipe.replace("adaround", "flexround"): hits(850) for recipe in SCORES} | {"full-precision": hits(990)}
RUN = Run("mini", "imagenet", "resnet18-brecq", "q-flexround-w4a4", 0)
CLAIMS = "claim,place,section,column,metric,bits,one,other,criterion,margin,noise,p_value,verdict,recipe,other_recipe"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def write(path: Path, content: object) -> None:
    """Write text, or anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def fill_root(root: Path) -> None:
    """Write tables 3 and 13 from made-up runs, one run with all records of a real run."""
    mini = root / "results/mini"
    write(mini / "table3.csv", fill(root / "results", OF_RUNS["table03"], SCORES))
    write(mini / "table13.csv", settings_csv(13, PLAN.params))
    rows = "Q + FlexRound (Ours),Q + AdaRound,better,1.00,0.50,0.0100,holds,q-flexround-w4a4,q-adaround-w4a4"
    lines = f"joint-s1-beats-adaround,table 3,,<b>bold</b>,top1,4/4,{rows}\n"
    lines += f"s1-learnable,,,,top1{8 * ','}not run,,\ns1-learnable,,,,top1{5 * ','}2.00,,,holds,,\n"
    write(mini / "claims.csv", claims_csv(f"{CLAIMS}\n{lines}"))
    (mini / "figure3.png").write_bytes(PIXEL)
    metrics = root / layout.evaluated_dir(RUN) / "metrics.json"
    write(metrics, json.loads(metrics.read_text()) | {"environment": {"device": "CPU", "packages": {"torch": "2"}}})
    blocks = [{"block": name, "phase": "weights", "seconds": 1.5, "error_rtn": 0.1234567} for name in "ab"]
    quantized = layout.quantized_dir(RUN)
    write(root / quantized / "record.json", {"blocks": blocks})
    facts = {
        "recipe": {"setting": "Q", "w_bits": 4},
        "hyper": {"lr": {"v": 0.1, "s1": 2}, "long" * 20: "name" * 20},
        "hyper_sources": {"lr": "section 9"},
    }
    write(root / quantized / "manifest.json", facts)
    write(root / PLAN.gate(RUN), {"top1": 99.0})


@functools.cache
def published(scale: str) -> str:
    """Return the report of a project without results, as it is cloned."""
    with tempfile.TemporaryDirectory() as root:
        Path(root, "results").mkdir()
        Path(root, "results/reference").symlink_to(ROOT / "results/reference")
        return report_page.render(Path(root), Plan(loaded(scale)))
