"""``flexround quantize`` and ``flexround export``, or ``python -m flexround ...``: the library from a shell."""

import importlib
import sys

from flexround.errors import USER_ERROR
from flexround.tools import cli


def main() -> None:
    """Run a command; what the user can mend is one line and exit code 2."""
    try:
        command = importlib.import_module("flexround.library.command")
    except ModuleNotFoundError as error:
        print(f"error: flexround needs the package {error.name}: pip install 'flexround[llm]'", file=sys.stderr)
        sys.exit(USER_ERROR)
    cli.main(lambda arguments: arguments.run(arguments), command.parser())


if __name__ == "__main__":
    main()
