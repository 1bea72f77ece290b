"""The Slurm profile, which locks are installed, and the container recipes."""

import re
import subprocess

import yaml
from test_stages import RULES

from flexround.settings.layout import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
PROFILE = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text())


# what is installed


def make_install(extras):
    command = ["make", "--dry-run", "--always-make", "install", f"EXTRAS={extras}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def synced(text):
    """Return the lock files of the command that installs them."""
    return re.findall(r"requirements\S*\.lock", re.search(r"uv pip sync .*", text)[0])


# the profile


def test_jobs_that_ask_for_a_gpu_go_to_the_gpu_partition():
    asking = {name for name, body in RULES.items() if "get_gpu_resources(" in body}
    there = {rule for rule, values in PROFILE["set-resources"].items() if values.get("slurm_partition") == "gpu"}
    assert there == asking == {"finetune", "gate", "reconstruct", "select", "evaluate"}
    assert PROFILE["default-resources"]["slurm_partition"] == "cpu"


def test_grouped_jobs_take_turns_and_are_of_one_network_or_task():
    groups = dict(entry.split("=", 1) for entry in PROFILE["groups"])
    assert set(groups) <= set(RULES)
    assert groups["evaluate"] == "evaluate-{task}-{checkpoint}"
    assert all(PROFILE["set-resources"][rule]["turn"] == 1 for rule in groups)
    assert PROFILE["resources"] == {"turn": 1}
    assert {entry.rpartition("=")[0] for entry in PROFILE["group-components"]} == set(groups.values())


# the containers


def test_both_recipes_are_the_same_image():
    docker, apptainer = ((ROOT / "container" / name).read_text() for name in ("Dockerfile", "flexround.def"))
    base = re.search(r"^FROM (\S+)$", docker, re.MULTILINE)[1]
    assert re.search(r"^From: (\S+)$", apptainer, re.MULTILINE)[1] == base
    toolkit = re.search(r"^cuda-toolkit==(\d+\.\d+)\.", LOCK, re.MULTILINE)[1]
    assert base.startswith(f"nvidia/cuda:{toolkit}.")
    script = (ROOT / "container/install.sh").read_text()
    assert synced(script) == synced(make_install("slurm"))
    assert re.search(r"sed -n '.*uv==.*requirements\.lock", script)[0] in make_install("slurm"), "uv's own pin"
    copied = re.search(r"^COPY (.*) /opt/flexround/$", docker, re.MULTILINE)[1].split()
    assert copied == re.findall(r"^    (\S+) /opt/flexround/", apptainer.split("%post")[0], re.MULTILINE)
    assert {*synced(script), "container/install.sh"} == set(copied)
    assert all((ROOT / name).is_file() for name in copied)
    environment = re.search(r"^ENV (.*)$", docker, re.MULTILINE)[1]
    assert f"export {environment}\n" in apptainer
    subprocess.run(["sh", "-n", ROOT / "container/install.sh"], check=True)
