"""Fits times of operators."""
