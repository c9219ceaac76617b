"""Operators of a trace: which launched what, in which shapes and precision."""
