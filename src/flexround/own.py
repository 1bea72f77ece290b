"""Start a stage with the user's own recipes: ``python -m flexround.own FILE flexround.stages.STAGE ARGUMENTS``."""

import functools
import runpy
import sys
from pathlib import Path

from flexround.settings import additions, load


def main() -> None:
    """Run the module named second on the command line, with its arguments and with the settings of the file merged in.

    The stages don't know of the file: whatever they imported for it, all results would depend on.
    """
    if len(sys.argv) < 3:
        sys.exit(f"usage: {__doc__}")
    _, file, module, *arguments = sys.argv
    additions.import_beside(Path(file))
    load.load_params = functools.partial(additions.load, file=Path(file))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
