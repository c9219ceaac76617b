"""Captures a PyTorch module: what it runs in one training step becomes a graph."""
