"""The machine: devices, memory, precision, seeds, and the facts that a result records about them."""
