#!/usr/bin/env bash
# Seconds of each stage process before it works: everything it imports, for images and for texts, up to the first
# step of an optimizer where there is one; nothing else.
set -euo pipefail
images="import flexround.mini.models, flexround.models.mobilenetv2"
texts="import flexround.models.transformer"
step="import torch; w = torch.nn.Parameter(torch.ones(1)); w.grad = w.detach(); torch.optim.Adam([w]).step()"

best() { # stage, further statements
    for _ in 1 2 3; do
        python - "$1" "$2" <<'PY'
import subprocess, sys, time
start = time.perf_counter()
code = f"import flexround.stages.{sys.argv[1]}\n{sys.argv[2]}"
subprocess.run([sys.executable, "-c", code], check=True)
print(f"{time.perf_counter() - start:.2f}")
PY
    done | sort -n | head -1
}

for stage in data calibrate tabulate figure; do
    echo "$stage $(best $stage "") s"
done
for kind in images texts; do
    echo "evaluate, $kind: $(best evaluate "${!kind}") s"
    echo "reconstruct, $kind: $(best reconstruct "${!kind}
$step") s"
done
echo "finetune, images: $(best finetune "$images
$step") s"
echo "finetune, texts: $(best finetune "$texts
import accelerate
$step") s"
