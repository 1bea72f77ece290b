"""Common-sense reasoning of LLaMA."""
