"""``flexround quantize``, or ``python -m flexround quantize``: the library from a shell."""

import importlib
import sys

from flexround.errors import USER_ERROR, SettingsError, look_up
from flexround.tools import cli

COMMANDS = {"quantize": "flexround.library.command"}


def main() -> None:
    """Run a command; what the user can mend is one line and exit code 2."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"usage: python -m flexround {{{','.join(COMMANDS)}}} ...; each has --help", file=sys.stderr)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    try:
        module = look_up("command", COMMANDS, sys.argv[1])
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    try:
        command = importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(f"error: {sys.argv[1]} needs the package {error.name}: pip install 'flexround[llm]'", file=sys.stderr)
        sys.exit(USER_ERROR)
    del sys.argv[1]
    cli.main(command.run, command.parser())


if __name__ == "__main__":
    main()
