"""``flexround quantize``, ``export`` and ``compare``, or ``python -m flexround ...``: from a shell."""

import importlib
import sys

from flexround.errors import USER_ERROR
from flexround.tools import cli


def main() -> None:
    """Run a command; what the user can mend is one line and exit code 2."""
    compares = sys.argv[1:2] == ["compare"]
    try:
        command = importlib.import_module("flexround.tools.compare" if compares else "flexround.library.command")
    except ModuleNotFoundError as error:
        extra = "suite" if compares else "llm"
        print(f"error: flexround needs the package {error.name}: pip install 'flexround[{extra}]'", file=sys.stderr)
        sys.exit(USER_ERROR)
    if compares:
        del sys.argv[1]
    cli.main(lambda arguments: arguments.run(arguments), command.parser())


if __name__ == "__main__":
    main()
