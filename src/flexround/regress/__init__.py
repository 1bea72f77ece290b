"""Regression checks of numbers: reference tables with tolerances, and sentinels for defects that tables hide."""
