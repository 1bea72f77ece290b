"""Draw the calibration samples of a seed and store the very samples, so that all methods see the same ones."""

from flexround.jobs import command

parser = command.described(__doc__)

if __name__ == "__main__":
    command.main("flexround.stages.calibrate", parser())
