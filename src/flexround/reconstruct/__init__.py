"""Block-by-block optimisation: activation cache, engine, per-block state, stored result."""
