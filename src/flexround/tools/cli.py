"""What all tools share: logging, errors meant for the user."""

import argparse
import logging
import sys
from collections.abc import Callable

from flexround.errors import USER_ERROR, FlexRoundError


def main(run: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Parse the command line and run a tool; a FlexRoundError ends it with exit code 2 and no traceback."""
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        run(arguments)
    except FlexRoundError as error:
        logging.getLogger(__name__).error("error: %s", error)
        sys.exit(USER_ERROR)
