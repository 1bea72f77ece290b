"""The mini scale's own: generated digits, narrow networks, outlier channels. Its texts are frozen (params/data)."""
