"""What a reader of the results opens: one HTML page, one LaTeX document, the status table of the README."""
