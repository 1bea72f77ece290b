"""The work of each Snakemake rule: read the inputs, call the package, write the outputs."""
