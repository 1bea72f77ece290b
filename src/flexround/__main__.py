"""``flexround quantize`` and ``flexround export``, or ``python -m flexround ...``: the library from a shell."""

import importlib
import sys

from flexround.errors import USER_ERROR, SettingsError, look_up
from flexround.tools import cli

COMMANDS = {"quantize": "flexround.library.command", "export": "flexround.library.export_command"}


def main() -> None:
    """Run a command; what the user can mend is one line and exit code 2."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"usage: python -m flexround {{{','.join(COMMANDS)}}} ...; each has --help", file=sys.stderr)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    name = sys.argv.pop(1)
    try:
        command = importlib.import_module(look_up("command", COMMANDS, name))
    except SettingsError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        message = f"{name} needs the package {error.name}: pip install 'flexround[llm]'"
    else:
        return cli.main(command.run, command.parser())
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
