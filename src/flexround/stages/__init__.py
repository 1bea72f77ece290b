"""One command line per Snakemake rule: read the inputs, call the package, write the outputs."""

import gc
import sys

# The search for cycles takes a sixth of the imports' time and finds none. A program is called "-m" while Python looks
# for the module to run, which is now if that is a stage; ``cli.main`` turns the search on again.
if sys.argv[0] == "-m":
    gc.disable()
