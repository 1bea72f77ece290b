"""The synthetic world: its texts, and what mini's networks learn before the mini scale begins."""
