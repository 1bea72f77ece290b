"""What sentinels look at: small networks, tensors and data sets, through the public functions of the package.

Each probe is a function from a variant to values by name. Variant 0 gives the values; in others every weight and input
is changed by some millionths, as a machine that rounds differently would do, and the values move by what is noise.
"""
