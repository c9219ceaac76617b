"""Fits times of collectives."""
