"""A scale rehearsed: all of its jobs on stand-ins in the real formats, before days of GPU time."""
