"""From evaluated runs to what is read: cells, contests, CSV, claims, renderings."""
