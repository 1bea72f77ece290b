"""A run without a shared file system, and published results, on a server of S3's protocol on this machine."""

import importlib.util
import shutil
import sys

import pytest
from project_copy import copy
from published import Clone
from result_hashes import hashes

from flexround.settings.layout import ROOT

NEEDED = ("moto", "flask", "boto3", "dvc_s3", "snakemake_storage_plugin_s3")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
RUN = "evaluated/imagenet/mobilenetv2-brecq/full-precision/seed0"
pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; make install EXTRAS=s3"),
]


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    patch = pytest.MonkeyPatch()
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        patch.setenv(f"AWS_{name}", value)
    yield f"http://127.0.0.1:{port}"
    patch.undo()
    server.stop()


@pytest.fixture
def bucket(server, request):
    import boto3

    bucket = boto3.resource("s3", endpoint_url=server).create_bucket(Bucket=f"b{abs(hash(request.node.name))}")
    yield bucket
    bucket.objects.all().delete()


def snakemake(project, *arguments):
    target = f"results/smoke/{RUN}/metrics.json"
    scale = f"scale={ROOT / 'tests/smoke.yaml'}"
    Clone(project).run(sys.executable, "-m", "snakemake", "--cores", "1", target, *arguments, "--config", scale)


def provider(server, bucket):
    options = {"endpoint-url": server, "access-key": "a", "secret-key": "b"}
    storage = ["--default-storage-provider", "s3", "--default-storage-prefix", f"s3://{bucket.name}/run"]
    return [*storage, "--shared-fs-usage", "none", *(f"--storage-s3-{key}={value}" for key, value in options.items())]


def test_results_in_the_bucket_are_those_of_a_local_run(tmp_path, server, bucket):
    away, here, found = (copy(tmp_path / name) for name in ("away", "here", "found"))
    snakemake(away, *provider(server, bucket))
    assert not any(path.is_file() for path in (away / ".snakemake/storage").rglob("*"))
    for item in bucket.objects.filter(Prefix="run/results/"):
        path = found / item.key.removeprefix("run/")
        path.parent.mkdir(parents=True, exist_ok=True)
        bucket.download_file(item.key, str(path))
    snakemake(here)
    assert hashes(found) == hashes(here)


def test_dvc_publishes_to_a_bucket(tmp_path, server, bucket):
    one, other = tmp_path / "one", tmp_path / "other"
    (one / "results").mkdir(parents=True)
    (one / "results/a.json").write_text("1")
    for command in (
        *("git init --quiet .", "dvc init --quiet", "dvc add --quiet results", "git add ."),
        f"dvc remote add --default storage s3://{bucket.name}/dvc",
        f"dvc remote modify storage endpointurl {server}",
        "dvc push --quiet",
    ):
        Clone(one).run(*command.split())
    shutil.copytree(one, other, ignore=shutil.ignore_patterns("cache", "results", "tmp"))
    Clone(other).run("dvc", "pull", "--quiet")
    assert (other / "results/a.json").read_text() == "1"
