"""The testbed: real distributed training on this machine, beside its forecast."""
