"""Measures the machine at hand as a cluster file."""
