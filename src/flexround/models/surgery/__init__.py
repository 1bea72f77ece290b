"""Changes to full-precision models for quantization: batch-norm folding, equalization, adapters, quantizers."""
