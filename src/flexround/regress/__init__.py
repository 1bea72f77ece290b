"""Regression checks of results: reference tables with tolerances."""
