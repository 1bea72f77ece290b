"""The mini scale's own task: digits. Its texts are read by ``flexround.tasks``, as those of the paper's scale."""
