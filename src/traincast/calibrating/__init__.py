"""Learning a cluster from its own runs: the few parameters that datasheets do not give, and how sure they are."""
