"""Measure operators, alone and inside their models, and collectives between processes, on this machine."""
