"""Measures the distinct works of one plan."""
