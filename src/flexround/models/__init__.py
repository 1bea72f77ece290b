"""Each architecture's blocks, quantized tensors, and first and last layer."""
