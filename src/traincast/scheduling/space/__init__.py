"""Where jobs run: nodes, free GPUs and placement."""
