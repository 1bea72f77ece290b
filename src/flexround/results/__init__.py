"""From evaluated runs to what is read: cells, paired statistics, CSV, claims, renderings."""
