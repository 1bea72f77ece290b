"""All user settings: YAML in ``params/``, validated before any computation."""
