"""Pass or stop a full-precision network: nothing is quantized before it is what it should be."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.gate", parser())
