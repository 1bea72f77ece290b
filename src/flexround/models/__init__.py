"""Where the blocks, the quantized tensors and the first and last layer of each architecture are."""
