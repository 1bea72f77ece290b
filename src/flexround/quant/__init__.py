"""Section 3 of the paper as tensor maths: grids, roundings, activation quantizer. It imports torch alone."""
