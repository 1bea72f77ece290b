"""Regression checks of numbers: reference tables with tolerances."""
