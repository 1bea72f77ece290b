"""What the rules run: the job file, the workers, one entry point a rule."""
