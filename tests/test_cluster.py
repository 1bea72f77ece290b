"""The Slurm profile, which locks are installed, the container recipes, and the private Slurm of rehearsals."""

import re
import subprocess
import time

import private_slurm
import pytest
import rehearse_slurm
import yaml
from result_hashes import differences, hashes
from test_stages import RULES

from flexround.rehearsal.project import copy
from flexround.settings.layout import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
PROFILE = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text())
needs_slurm = pytest.mark.skipif(bool(private_slurm.missing()), reason=f"not installed: {private_slurm.missing()}")


# what is installed


@pytest.mark.parametrize(("extras", "locks"), [("", []), ("slurm", ["requirements-slurm.lock"])])
def test_install_syncs_the_locks_that_are_asked_for(extras, locks):
    assert synced(make_install(extras))[1:] == locks


def make_install(extras):
    command = ["make", "--dry-run", "--always-make", "install", f"EXTRAS={extras}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def synced(text):
    """Return the lock files of the command that installs them."""
    return re.findall(r"requirements\S*\.lock", re.search(r"uv pip sync .*", text)[0])


# the profile


def test_jobs_that_ask_for_a_gpu_go_to_the_gpu_partition():
    asking = {name for name, body in RULES.items() if re.search(r"^        gpu=", body, re.MULTILINE)}
    there = {rule for rule, values in PROFILE["set-resources"].items() if values.get("slurm_partition") == "gpu"}
    assert there == asking == {"finetune", "gate", "reconstruct", "select", "evaluate"}
    assert PROFILE["default-resources"]["slurm_partition"] == "cpu"


def test_downloads_and_copies_stay_where_snakemake_runs():
    local = {name for name, body in RULES.items() if "localrule: True" in body}
    copying = {name for name, body in RULES.items() if re.search(r'^        "cp ', body, re.MULTILINE)}
    assert local == {"fetch", *copying}
    assert len(copying) == 4


def test_grouped_jobs_take_turns_and_are_of_one_network_or_task():
    groups = dict(entry.split("=", 1) for entry in PROFILE["groups"])
    assert set(groups) <= set(RULES)
    assert groups["evaluate"] == "evaluate-{task}-{checkpoint}"
    assert all(PROFILE["set-resources"][rule]["turn"] == 1 for rule in groups)
    assert PROFILE["resources"] == {"turn": 1}
    assert PROFILE["set-resource-scopes"] == {"turn": "local"}
    assert {entry.rpartition("=")[0] for entry in PROFILE["group-components"]} == set(groups.values())


# the containers


def test_both_recipes_are_the_same_image_with_the_packages_of_the_lock():
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


def test_jobs_run_in_the_image_that_the_recipe_makes():
    built = re.search(r"apptainer build (\S+)", (ROOT / "container/flexround.def").read_text())[1]
    assert f'container: "{built}"' in (ROOT / "workflow/rules/common.smk").read_text()


# the rehearsal


def test_a_rehearsal_compares_all_but_sources_and_what_is_measured(tmp_path):
    for name in ("one", "other"):
        record = f'{{"error": 1, "blocks": [{{"seconds": {len(name)}, "error": 2}}]}}'
        for file, text in {"mini/a.json": record, "table1.csv": "2", "sources/x": name}.items():
            path = tmp_path / name / "results" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    one, other = (hashes(tmp_path / name) for name in ("one", "other"))
    assert set(one) == {"mini/a.json", "table1.csv"}
    assert differences(one, other) == []
    assert differences(one | {"more": "0"}, other) == ["left over: more"]
    assert differences({"table1.csv": other["table1.csv"]}, other) == ["missing: mini/a.json"]
    (tmp_path / "one/results/mini/a.json").write_text(record.replace('"error": 2', '"error": 3'))
    assert differences(hashes(tmp_path / "one"), other) == ["other bits: mini/a.json"]


def test_the_small_profile_is_the_profile_but_for_its_size(tmp_path):
    project = copy(tmp_path)
    small = yaml.safe_load((rehearse_slurm.small_profile(project) / "profile.yaml").read_text())
    assert small.pop("jobs") == 2
    resources = small["set-resources"].pop("reconstruct")
    assert resources == {"slurm_partition": "gpu", "runtime": "2 * attempt", "gres": "gpu:a100:1"}
    assert small.keys() <= {*PROFILE, "slurm-init-seconds-before-status-checks"}
    rest = {rule: values for rule, values in PROFILE["set-resources"].items() if rule != "reconstruct"}
    assert small["set-resources"] == rest


def test_what_is_not_installed_is_named_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(private_slurm, "NEEDED", ("sh", "no-such-daemon"))
    with pytest.raises(private_slurm.SlurmError, match=r"not installed: no-such-daemon; .*apt install"):
        private_slurm.Cluster(tmp_path / "slurm").up()
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with private_slurm.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def until(condition):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return found


@pytest.mark.slurm
@needs_slurm
def test_a_job_of_a_killed_node_is_queued_again_and_ends_on_the_other(cluster, tmp_path):
    gone, done = tmp_path / "gone", tmp_path / "done"
    script = f"[ -e {gone} ] && touch {done} && exit; touch {gone}; sleep 600 & srun -n1 sleep 600"
    number = cluster.command(
        *("sbatch", "--parsable", "--requeue", "--gpus=a100:1", "--mem=100", "--time=5", "--partition=gpu"),
        *(f"--output={tmp_path}/log", f"--chdir={tmp_path}", f"--wrap={script}"),
    ).strip()
    until(gone.exists)
    node = cluster.command("squeue", "--noheader", "--format=%N", "--jobs", number).strip()
    until(lambda: len(list(cluster.job_processes(node))) >= 4)  # script, two of srun, two sleeps
    assert len(cluster.kill_node(node)) >= 6, "slurmd and the steps' daemons too"
    assert not list(cluster.job_processes(node))
    assert cluster.states()[node].startswith("DOWN")
    until(done.exists)
    until(lambda: len(cluster.jobs()) == 2)
    first, second = cluster.jobs()
    assert (first["JobId"], first["JobState"], first["NodeList"]) == (number, "NODE_FAIL", node)
    assert (second["JobId"], second["JobState"]) == (number, "COMPLETED")
    assert second["NodeList"] != node
    cluster.start_node(node)
    until(lambda: cluster.states()[node] == "IDLE")
