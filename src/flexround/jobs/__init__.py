"""The programs of the rules: job files, workers, and one entry point per rule."""
