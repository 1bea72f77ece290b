"""Files of a repository on the Hugging Face hub, at one commit; in a process of its own, which a time limit can end."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flexround.io.download import LIMIT, DownloadError


def snapshot(repository: str, kind: str, revision: str, files: Sequence[str], path: Path) -> tuple[Path, str]:
    """Download files; what breaks off is continued by the next call.

    Args:
        repository: ``owner/name``.
        kind: ``model`` or ``dataset``.
        revision: branch, tag or commit.
        files: patterns of names.
        path: of the future directory, beside which this one is.

    Returns:
        The directory of the files, and the commit that the revision means.

    Raises:
        DownloadError: it can't be reached, or takes too long.
    """
    command = [sys.executable, "-m", "flexround.io.hub", repository, kind, revision, str(path), *files]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"it took longer than {LIMIT} s; what came is kept, run the same command again") from error
    told = json.loads(done.stdout or "{}")
    if "commit" not in told:
        raise DownloadError(f"the download failed ({told.get('error', f'exit code {done.returncode}')})")
    return _partial(path, told["commit"]), told["commit"]


def _partial(path: Path, commit: str) -> Path:
    return path.with_name(f".{path.name}.{commit}")


def main(repository: str, kind: str, revision: str, path: str, *files: str) -> dict[str, str]:
    """Download in this process; return the commit, or what went wrong in one line."""
    import huggingface_hub  # here: who only waits for this process does without it

    try:
        # A branch may move on in the middle of a download, a commit can't.
        commit = str(huggingface_hub.repo_info(repository, repo_type=kind, revision=revision).sha)
        huggingface_hub.snapshot_download(
            repository, repo_type=kind, revision=commit, local_dir=_partial(Path(path), commit), allow_patterns=[*files]
        )
    except Exception as error:  # those of the hub and of its HTTP client have no base of their own
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
    return {"commit": commit}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
