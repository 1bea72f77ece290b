"""What the tasks on text share."""
