"""Block-by-block reconstruction of a network.

The path of one block: ``engine.reconstruct`` takes the blocks in turn. A phase (``phases``) computes the block's
full-precision target and puts a rounding on each weight (``layers``). ``optimise`` lowers the error on batches of the
cached activations (``cache``), and codes replace the roundings. ``codes`` defines the format of their files. ``state``
writes them with the activations that the next block reads, so that a killed job can resume.

``reconstruction`` holds the model, its full-precision weights and the settings; ``inputs`` finds the layers' inputs.
``preflight`` tries the largest block, and ``network`` builds and loads whole networks.
"""
