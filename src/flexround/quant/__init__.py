"""Section 3 of the paper as tensor maths: grids, roundings, activation quantizer. Imports torch and nothing else."""
