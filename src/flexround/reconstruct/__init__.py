"""Block-by-block reconstruction of a network.

The path of one block: ``engine.reconstruct`` takes the blocks in turn. A phase (``phases``) computes the block's
full-precision target, puts a rounding on each weight, lets ``optimise`` lower the error on batches of the cached
activations (``cache``), and replaces each rounding by its codes. ``codes`` defines how these are stored. ``state``
writes them with the activations that the next block reads, so that a killed job can go on.

``reconstruction`` holds the model and the settings, ``weights`` provides a block's full-precision weights, ``inputs``
finds what its layers read, ``preflight`` tries the largest block, and ``network`` builds and loads whole networks.
"""
