"""Take the best of several quantized networks by a held-out part of the training data, never by the test set."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.select", parser())
