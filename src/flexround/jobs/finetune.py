"""Make the full-precision network of a task: import it, and train it if the scale says how."""

import functools

from flexround.jobs import command

parser = functools.partial(command.resumable, __doc__)

if __name__ == "__main__":
    command.main("flexround.stages.finetune", parser())
