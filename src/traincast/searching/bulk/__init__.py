"""Evaluates whole families of strategies at once."""
