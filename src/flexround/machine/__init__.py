"""The machine: devices, memory, precision, seeds, and the facts about them that results record."""
