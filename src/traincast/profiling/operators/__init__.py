"""Measures operators, alone and inside their models."""
