"""Studies of the testbed: a grid of runs, each with its forecast."""
