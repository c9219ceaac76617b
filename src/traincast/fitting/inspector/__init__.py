"""Fits the graph inspector."""
