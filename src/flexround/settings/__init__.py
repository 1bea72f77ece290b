"""Everything the user can set: YAML in ``params/``, validated before anything is computed."""
