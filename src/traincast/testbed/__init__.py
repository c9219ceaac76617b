"""The testbed: training that really runs on this machine, over networks whose speed is chosen."""
