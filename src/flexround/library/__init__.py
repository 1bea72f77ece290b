"""FlexRound from Python: quantize, save and load your own network. ``flexround`` exports the public names."""
