"""FlexRound from Python: quantize a network of one's own, save it, load it. What is public is in ``flexround``."""
