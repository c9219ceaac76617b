"""How each kind of parallelism runs on PyTorch: one module each."""
