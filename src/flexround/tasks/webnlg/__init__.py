"""WebNLG: generation with LoRA."""
