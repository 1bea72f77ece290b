#!/bin/sh
# The pinned packages of requirements.lock and of the Slurm plugin into /opt/venv, for both images. The project itself is
# not in them: jobs run the code of the directory that they are started in.
set -eu
apt-get update
apt-get install --yes --no-install-recommends git python3 python3-venv
rm -rf /var/lib/apt/lists/*
cd /opt/flexround
python3 -m venv /opt/venv
sed -n '/^uv==/,/# via/p' requirements.lock > uv.txt
/opt/venv/bin/python -m pip install --quiet --no-cache-dir --require-hashes --requirement uv.txt
/opt/venv/bin/uv pip sync --quiet --require-hashes --no-cache --compile-bytecode --python /opt/venv/bin/python requirements.lock requirements-slurm.lock
