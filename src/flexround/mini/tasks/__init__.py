"""The tasks of the mini scale: those of ``flexround.tasks`` on data of the synthetic world and on digits."""
