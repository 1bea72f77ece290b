"""One command line per Snakemake rule: read the inputs, call the package, write the outputs."""
