"""One rank of the testbed: what it runs, and how it is started."""
