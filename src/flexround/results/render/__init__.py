"""LaTeX, HTML, figures, the report and the document."""
