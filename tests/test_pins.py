"""The pins: exact, with hashes and without addresses, of all that is asked for; `environment.yml` has the same."""

import itertools
import re
import tomllib
from pathlib import Path

import environment_yml
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(.*) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE)
ADDRESS = r"https?:|--(?:extra-)?index-url|--find-links|file:"
TEXTS = {name: (ROOT / f"requirements{name}.lock").read_text() for name in ("", "-slurm", "-s3")}


def pins(lock):
    """Return name -> its versions, of the oldest Python first, each with the Pythons that it is for."""
    found = {}
    for name, version in PIN.findall(TEXTS[lock]):
        found.setdefault(name, []).append(version.partition(" ;")[0])
    return found


@pytest.mark.parametrize("lock", TEXTS)
def test_everything_in_a_lock_is_exact_and_hashed(lock):
    lines = [line for line in TEXTS[lock].splitlines() if line and not line.startswith((" ", "#"))]
    assert len(PIN.findall(TEXTS[lock])) == len(lines) > 5
    assert not re.search(ADDRESS, TEXTS[lock])


@pytest.mark.parametrize("lock", [name for name in TEXTS if name])
def test_the_pins_of_an_extra_agree_with_the_lock(lock):
    both = {name: versions for name, versions in pins(lock).items() if name in pins("")}
    assert len(both) > 5
    assert both == {name: pins("")[name] for name in both}, "run `make lock`"
    wanted = (ROOT / f"requirements{lock}.in").read_text().splitlines()
    assert {re.match(r"[a-z0-9-]+", line)[0] for line in wanted if not line.startswith("#")} <= set(pins(lock))


def test_every_package_is_pinned_in_a_version_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    known = pins("")
    for requirement in map(Requirement, named):
        if requirement.name == project["name"]:  # an extra of its own
            continue
        assert requirement.name in known, f"{requirement.name} is not in requirements.lock: run `make lock`"
        version = known[requirement.name][0]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"
    assert (ROOT / "environment.yml").read_text() == environment_yml.render()
