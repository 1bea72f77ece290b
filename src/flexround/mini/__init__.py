"""Code of the mini scale: generated digits, narrow networks, outlier channels. Its texts are frozen (params/data)."""
