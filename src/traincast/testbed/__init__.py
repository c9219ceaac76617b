"""The testbed: training on this machine, measured span by span, and compared with its forecast."""
