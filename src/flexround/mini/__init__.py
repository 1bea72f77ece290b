"""The mini scale: offline data sets and narrow models."""
