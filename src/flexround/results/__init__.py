"""Turn evaluated runs into tables, figures and claims: cells, paired statistics, CSV, renderings."""
