"""What rules run: one thin command a rule, and the worker server that starts its work without slow imports."""
