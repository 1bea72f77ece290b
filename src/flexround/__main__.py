"""Shell commands: ``flexround quantize``, ``export``, ``compare`` and ``check``, or ``python -m flexround ...``."""

import importlib
import sys

from flexround.errors import USER_ERROR
from flexround.tools import cli

TOOLS = ("check", "compare")  # commands about the tables; the library has the others


def main() -> None:
    """Run a command; an error that the user can fix is one line, with exit code 2."""
    tool = sys.argv[1] if sys.argv[1:] and sys.argv[1] in TOOLS else None
    try:
        command = importlib.import_module(f"flexround.tools.{tool}" if tool else "flexround.library.command")
    except ModuleNotFoundError as error:
        extra = "suite" if tool else "llm"
        print(f"error: flexround needs the package {error.name}: pip install 'flexround[{extra}]'", file=sys.stderr)
        sys.exit(USER_ERROR)
    if tool:
        del sys.argv[1]
    cli.main(lambda arguments: arguments.run(arguments), command.parser())


if __name__ == "__main__":
    main()
