"""GLUE: section 4.3."""
