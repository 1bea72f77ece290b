"""Run all tests in two processes, a core each: one takes the files from the first on, the other from the last on.

    python tests/halves.py [arguments of pytest]

A process claims a file before its first test, so each file runs once, and both end together. The second half is printed
when it is done. The tests of this project fork, so plugins that run tests beside threads of their own can't be used.
"""

import subprocess
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run both halves; return pytest's exit code, that of the second half if only that one failed."""
    with tempfile.TemporaryDirectory() as directory:
        claims, printed = Path(directory, "claims"), Path(directory, "second")
        claims.mkdir()
        command = [sys.executable, "-m", "pytest", *arguments, f"--claims={claims}"]
        with printed.open("w") as file:
            second = subprocess.Popen([*command, "--backwards"], stdout=file, stderr=file)
            try:
                first = subprocess.run(command, check=False).returncode
            finally:
                print("\nthe other half:", flush=True)
                code = second.wait()
                print(printed.read_text(), end="")
    return first or code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
