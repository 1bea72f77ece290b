"""Put the settings of params/ into the package that is built: they are as much a part of it as its code."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithParams(build_py):
    """Copies what is read of params/; the networks and texts of the mini scale are read in the repository."""

    def run(self) -> None:
        """Build, then copy; an editable installation reads the repository."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "flexround" / "params"
            shutil.copytree("params", target, ignore=shutil.ignore_patterns("networks", "data"), dirs_exist_ok=True)


setup(cmdclass={"build_py": WithParams})
