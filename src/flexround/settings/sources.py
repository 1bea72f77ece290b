"""The pinned inputs: ``params/sources.yaml``, and the files and folders that a scale's own file names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, RootModel, model_validator

from flexround.settings.schema import Count, Name, Strict, Within, within

REQUIREMENT = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*"  # one version of a package
PLACED = "path:"  # prefix of the location of a user's source, which a scale's own file names


class Source(Strict):
    """A pinned external input."""

    kind: Literal["checkpoint", "dataset"]
    location: str = Field(
        description="URL, file:PATH in this project, hub:OWNER/NAME on the Hugging Face hub, git:URL of a repository, "
        "pypi:NAME==VERSION on the package index, or what to obtain if it can't be downloaded freely"
    )
    path: Annotated[str, AfterValidator(lambda path: path if path == "." else within(path))] | None = Field(
        None, description="of the file or directory within a git repository, `.` for all; of the member within a wheel"
    )
    file: Within = Field(description="name under the sources directory, of a file or a directory")
    files: tuple[Within, ...] = Field(
        (),
        description="files of a directory that is verified as a whole, may hold *; a directory without isn't verified; "
        "of a wheel: members of the zip at `path`",
    )
    packed: bool = Field(
        False,
        description="whether it is a tar, of which names and contents of the files are pinned, not the packing",
    )
    revision: str = Field(
        description="version; of the hub a commit or a name, of git the whole commit, of a package its wheel's sha256"
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="none: recorded at the first download and enforced from then on"
    )
    bytes: Count | None = None
    licence: str

    @property
    def inside(self) -> str:
        """Return the path within this project if the source is a file or directory of the project, else ``""``."""
        return self.location.removeprefix("file:") if re.match("file:[^/]", self.location) else ""

    @property
    def placed(self) -> Path | None:
        """Return the file or folder that a scale's own file names; None for every other source."""
        return Path(self.location.removeprefix(PLACED)) if self.location.startswith(PLACED) else None

    @model_validator(mode="after")
    def _files_of_place(self) -> "Source":
        if self.inside:
            within(self.inside)
        if self.location.startswith("hub:") and not self.files:
            raise ValueError("name the `files` wanted from the hub, e.g. [config.json, model.safetensors]")
        return self

    @model_validator(mode="after")
    def _part_of_git_or_wheel(self) -> "Source":
        scheme, _, origin = self.location.partition(":")
        whole = {"git": (40, "git repository give the whole commit"), "pypi": (64, "package give its wheel's sha256")}
        digits, revision = whole.get(scheme, (0, ""))
        if bool(digits) != (self.path is not None):
            raise ValueError("path: a location git:URL or pypi:NAME==VERSION needs it, and no other location has one")
        if digits and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", self.revision):
            raise ValueError(f"revision={self.revision!r}: of a {revision}, {digits} hex digits")
        if scheme == "pypi" and not re.fullmatch(REQUIREMENT, origin):
            raise ValueError(f"location={self.location!r}: give a package and one version, as in pypi:NAME==1.0")
        if self.packed and (self.files or scheme == "pypi"):
            raise ValueError("give packed or files: a tar is verified by all its files; of a wheel nothing is packed")
        if self.path == "." and not (self.packed or self.files):
            raise ValueError("path='.': of a whole repository give packed or files")
        return self


def placed(places: Mapping[str, str], directory: Path) -> dict[str, Source]:
    """Return as sources the files and folders that a scale's own file in ``directory`` names."""
    return {
        name: Source(
            kind="dataset",
            location=f"{PLACED}{(directory / place).resolve()}",
            file=name,
            revision="as it lies there",
            licence="its owner's",
        )
        for name, place in places.items()
    }


class Sources(RootModel[dict[Name, Source]]):
    """``params/sources.yaml``."""
