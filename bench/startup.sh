#!/usr/bin/env bash
# Seconds of each stage process before it works: everything it imports, nothing else.
set -euo pipefail
for stage in data calibrate finetune reconstruct evaluate tabulate figure; do
    extra=""
    case $stage in finetune | reconstruct | evaluate) extra="import flexround.mini.models, flexround.models.mobilenetv2" ;; esac
    best=$(for _ in 1 2 3; do
        python - "$stage" "$extra" <<'PY'
import subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, "-c", f"import flexround.stages.{sys.argv[1]}\n{sys.argv[2]}"], check=True)
print(f"{time.perf_counter() - start:.2f}")
PY
    done | sort -n | head -1)
    echo "$stage $best s"
done
